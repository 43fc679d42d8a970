// A tensor whose gradients are encoded as on a worker and added up as on a server, with a
// check of the sum.
//
//   BenchCodedTensor tensor({.transfer = transfer, .elements = 1 << 25});
//   const BenchCodedTensor::Times times = tensor.Round();
//   SYNCLINE_ASSIGN_OR_RETURN(const std::string how, tensor.Check());
//
// It has its own memory for all data: two gradients, which alternate, the sender's
// memory, the frames, and the accumulator.
//
// Thread safety: none; each benchmark thread has its own.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/base/buffer.h"
#include "comm/codec/frame.h"
#include "comm/compression/memory/gradient_memory.h"
#include "comm/compression/transfer.h"

namespace syncline {

class BenchCodedTensor {
 public:
  struct Options {
    Transfer transfer = {};
    uint64_t elements = 0;
    uint32_t number = 0;  // makes gradients of different tensors differ
  };
  explicit BenchCodedTensor(const Options& options);

  // Seconds of each part of a round, and bytes of all its frames.
  struct Times {
    double encode = 0;
    double parse = 0;
    double decode = 0;
    uint64_t wire_bytes = 0;
  };
  // Encodes one of the gradients into frames, checks them as a receiver does, and adds
  // them to the accumulator.
  Times Round();

  // Checks the accumulator after the rounds so far, and returns how:
  //   sum      accumulator and error feedback together equal all gradients given
  //   replay   sampled elements are recomputed in double precision, for other memories
  //   traits   the squared error is within the codec's bound
  //   finite   the codec promises nothing more
  // Fails with DataLoss, which names what is wrong.
  absl::StatusOr<std::string> Check() const;

  // Returns the memory that a tensor takes at most, in bytes.
  static double Bytes(const Options& options);

  // For tests of the check.
  std::span<float> accumulator() { return accumulator_; }

 private:
  // The sender's expected state of one element, given what it has sent.
  struct Replayed {
    float accumulated = 0;
    double kept = 0;
    double velocity = 0;
  };

  void Encode();
  std::vector<BlockView> Parse() const;
  void DecodeAdd(std::span<const BlockView> views);
  void Replay();
  const std::vector<float>& Gradient() const { return gradients_[rounds_ % 2]; }
  BlockLabel Label(const BlockRange& range) const;
  // Returns how many rounds used gradient `which`.
  double Count(uint64_t which) const {
    const uint64_t count = (rounds_ + 1 - which) / 2;
    return static_cast<double>(count);
  }
  double Given(size_t element) const;
  double Rounding() const;
  absl::Status CheckSum() const;
  absl::Status CheckReplay() const;
  absl::Status CheckFinite() const;
  absl::Status CheckError(const CodecTraits& traits) const;

  const Options options_;
  const CodecSet accepted_;
  const std::vector<BlockRange> blocks_;
  const uint64_t stride_;  // between replayed elements
  std::vector<float> gradients_[2];
  std::vector<float> accumulator_;
  GradientMemory memory_;
  GradientMemory::Workspace workspace_;
  std::vector<Buffer> rooms_;      // memory of the frames, block by block
  std::vector<Payload> payloads_;  // in rooms_
  std::vector<Replayed> replayed_;
  uint64_t rounds_ = 0;
};

}  // namespace syncline
