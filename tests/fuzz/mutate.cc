#include "tests/fuzz/mutate.h"

#include <algorithm>
#include <cstring>

namespace syncline::fuzz {
namespace {

constexpr uint32_t kInteresting[] = {0,          1,          0x7f,       0x80,
                                     0xff,       0x100,      0xffff,     0x10000,
                                     0x7f800000, 0x7fc00000, 0x7fffffff, 0x80000000,
                                     0xff800000, 0xffffffff, 0xffffffc1};

// Returns a position in `bytes`. Half of the time it is near the start, where the
// structure is.
size_t Place(const Bytes& bytes, std::mt19937& random) {
  const size_t reach =
      random() % 2 == 0 ? bytes.size() : std::min<size_t>(bytes.size(), 96);
  return random() % reach;
}

void Overwrite(Bytes& bytes, std::mt19937& random) {
  const uint32_t value = kInteresting[random() % std::size(kInteresting)];
  const size_t at = Place(bytes, random);
  const size_t width = std::min<size_t>(size_t{1} << random() % 3, bytes.size() - at);
  std::memcpy(bytes.data() + at, &value, width);
}

// Copies a part of one input into another, at random positions of both.
void Splice(Bytes& bytes, const Bytes& other, std::mt19937& random) {
  if (other.empty()) return;
  const size_t from = Place(other, random);
  const size_t at = Place(bytes, random);
  const size_t longest = std::min(other.size() - from, bytes.size() - at);
  const size_t length = 1 + random() % longest;
  std::memmove(bytes.data() + at, other.data() + from, length);
}

void Resize(Bytes& bytes, std::mt19937& random) {
  const auto at = static_cast<ptrdiff_t>(Place(bytes, random));
  if (random() % 2 == 0) {
    const auto length = static_cast<ptrdiff_t>(random() % 8 + 1);
    bytes.erase(bytes.begin() + at,
                bytes.begin() + std::min(at + length, std::ssize(bytes)));
  } else {
    bytes.insert(bytes.begin() + at, random() % 8 + 1, static_cast<std::byte>(random()));
  }
}

}  // namespace

Bytes Mutated(std::span<const Bytes> corpus, std::mt19937& random) {
  Bytes bytes = corpus[random() % corpus.size()];
  const uint32_t changes = 1 + random() % 4;
  for (uint32_t i = 0; i < changes; ++i) {
    if (bytes.empty()) bytes.emplace_back();
    switch (random() % 6) {
      case 0:
        bytes[Place(bytes, random)] ^= static_cast<std::byte>(1u << random() % 8);
        break;
      case 1:
        bytes[Place(bytes, random)] = static_cast<std::byte>(random());
        break;
      case 2:
        Overwrite(bytes, random);
        break;
      case 3:
        Splice(bytes, corpus[random() % corpus.size()], random);
        break;
      case 4:
        Resize(bytes, random);
        break;
      default:
        if (random() % 8 == 0) bytes.resize(Place(bytes, random));
        break;
    }
  }
  return bytes;
}

}  // namespace syncline::fuzz
