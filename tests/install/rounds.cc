// Local SGD with rounds that follow the worker's speed, on a model of one weight. The
// install test builds it with the installed headers. A step takes longer on rank 1.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "syncline.hpp"

int main() {
  auto options = syncline::Options::FromEnv();
  options.Set("optimizer", "sgd:lr=1").Set("push", "fp32").Set("publish", "fp32");
  syncline::AdaptiveRounds rounds("adaptive:40");
  std::vector<float> global(1);
  syncline::Session session(options);
  const auto weight = session.Declare("w", {1}, global.data());
  rounds.Declare(session);
  session.Start();
  uint64_t steps = 0;
  for (int round = 0; round < 8; ++round) {
    float own = global[0];
    steps = rounds.Begin();
    for (uint64_t step = 0; step < steps; ++step) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1 + session.rank()));
      own += 0.5f * (1 - own);
    }
    const auto samples = static_cast<uint32_t>(steps);
    rounds.Push(session, samples);
    const float moved = global[0] - own;
    session.PushPull(weight, &moved, samples);
    session.Wait(weight);
    rounds.Wait(session);
  }
  steps = rounds.Begin();
  std::printf("rank %u: next %u steps, w = %.3f\n", session.rank(),
              static_cast<unsigned>(steps), static_cast<double>(global[0]));
  session.Leave();
}
