#include "comm/codec/bf16/bf16.h"
#include "comm/codec/codec.h"
#include "comm/codec/fp16/fp16.h"
#include "comm/codec/fp32/fp32.h"

namespace syncline {

CodecRegistry CodecRegistry::Builtin() {
  CodecRegistry registry;
  registry.Register(MakeFp32Codec());
  registry.Register(MakeBf16Codec());
  registry.Register(MakeFp16Codec());
  registry.Register(MakeStochasticBf16Codec());
  return registry;
}

}  // namespace syncline
