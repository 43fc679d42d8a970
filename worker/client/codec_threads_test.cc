// Tests of the codec threads.
#include "worker/client/codec_threads.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "comm/base/env.h"
#include "comm/base/tiling.h"
#include "gtest/gtest.h"
#include "worker/client/encode_work.h"

namespace syncline {
namespace {

constexpr uint32_t kBlocks = 40;
constexpr uint32_t kElements = kTileElements + 100;

// Encodes the blocks of one tensor with error feedback, over several steps.
class Works {
 public:
  explicit Works(uint32_t steps) : steps_(steps) {
    for (size_t i = 0; i < gradient_.size(); ++i) {
      gradient_[i] = static_cast<float>(i * 2654435761u % 1009) / 1009 - 0.5f;
    }
  }

  std::shared_ptr<EncodeWork> Make(uint32_t block, uint64_t step) {
    const BlockRange range = {0, uint64_t{block} * 2 * kTileElements, kElements};
    const size_t room = MaxBlockBytes(transfer_.Accepted(), kElements);
    return std::make_shared<EncodeWork>(
        EncodeWork::Options{},
        GradientBlock{.block = block,
                      .label = {.range = range, .step = step},
                      .gradient = gradient_},
        EncodeWork::Compressed{.transfer = transfer_,
                               .kept = &memory_,
                               .memory = Buffer::Allocate(room).owner(),
                               .room = room});
  }

  template <typename Submit, typename Finish>
  void RunAll(const Submit& submit, const Finish& finish) {
    for (uint32_t step = 1; step <= steps_; ++step) {
      for (uint32_t block = 0; block < kBlocks; ++block) submit(Make(block, step));
      finish();
    }
  }
  std::vector<float> Kept() const {
    return {memory_.residual().begin(), memory_.residual().end()};
  }

 private:
  const uint32_t steps_;
  const Transfer transfer_ = *ParseTransfer("onebit:min_elements=0,vectors=1");
  std::vector<float> gradient_ = std::vector<float>(size_t{kBlocks} * 2 * kTileElements);
  GradientMemory memory_{transfer_.memory, gradient_.size()};
};

TEST(CodecThreads, MakeWhatOneThreadMakes) {
  Works alone(3);
  CodecWorkspace workspace;
  alone.RunAll([&](const std::shared_ptr<EncodeWork>& work) { work->Run(workspace); },
               [] {});
  Works together(3);
  std::atomic<uint32_t> done = 0;
  CodecThreads threads({.threads = 4});
  uint32_t steps = 0;
  together.RunAll(
      [&](const std::shared_ptr<EncodeWork>& work) {
        threads.Submit([work, &done](CodecWorkspace& workspace) {
          work->Run(workspace);
          ++done;
        });
      },
      [&] {
        threads.Finish();
        EXPECT_EQ(done, ++steps * kBlocks) << "all of it is over";
      });
  EXPECT_EQ(together.Kept(), alone.Kept());
}

TEST(CodecThreads, FinishWhatTheyHaveWhenTheyEnd) {
  Works works(1);
  std::atomic<uint32_t> done = 0;
  {
    CodecThreads threads({.threads = 2});
    works.RunAll(
        [&](const std::shared_ptr<EncodeWork>& work) {
          threads.Submit([work, &done](CodecWorkspace& workspace) {
            work->Run(workspace);
            ++done;
          });
        },
        [] {});
  }
  EXPECT_EQ(done, kBlocks);
}

TEST(CodecThreads, TraceWhatEachOfThemDoes) {
  const SteadyClock clock;
  TraceRecorder recorder(clock);
  std::vector<TraceTrack*> tracks = {recorder.AddTrack("codec 1"),
                                     recorder.AddTrack("codec 2")};
  recorder.Open(0);
  recorder.Limit(100);
  Works works(1);
  {
    CodecThreads threads({.threads = 2, .tracks = tracks});
    works.RunAll(
        [&](const std::shared_ptr<EncodeWork>& work) {
          threads.Submit([work](CodecWorkspace& workspace) { work->Run(workspace); });
        },
        [] {});
  }
  std::set<uint32_t> blocks;
  while (auto taken = recorder.Take(1000)) {
    EXPECT_TRUE(taken->track == "codec 1" || taken->track == "codec 2") << taken->track;
    for (const TraceSpan& span : taken->spans) {
      EXPECT_EQ(span.kind, TraceKind::kEncodeBlock);
      EXPECT_EQ(span.step, 1u);
      EXPECT_LE(span.begin_ns, span.end_ns);
      blocks.insert(span.block);
    }
  }
  EXPECT_EQ(blocks.size(), kBlocks);
}

TEST(CodecThreads, AreBehindOnceFourWorksWaitForEach) {
  absl::Notification begun, go_on;
  CodecThreads threads({.threads = 1});
  threads.Submit([&](CodecWorkspace&) {
    begun.Notify();
    go_on.WaitForNotification();
  });
  begun.WaitForNotification();
  for (int waiting = 0; waiting < 4; ++waiting) {
    EXPECT_FALSE(threads.IsBehind()) << waiting;
    threads.Submit([](CodecWorkspace&) {});
  }
  EXPECT_TRUE(threads.IsBehind());
  go_on.Notify();
  threads.Finish();
  EXPECT_FALSE(threads.IsBehind());
}

TEST(CodecThreads, AreAsManyAsAskedFor) {
  EXPECT_EQ(ThreadsForCodecs(0), 0u);
  EXPECT_EQ(ThreadsForCodecs(7), 7u);
  EXPECT_LE(ThreadsForCodecs(std::nullopt), kMaxDefaultCodecThreads);
}

}  // namespace
}  // namespace syncline
