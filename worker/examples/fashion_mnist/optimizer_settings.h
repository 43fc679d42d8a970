// AdamW's settings, the same for the servers of a job and for torch's optimizer.
#pragma once

namespace syncline::fashion_mnist {

struct OptimizerSettings {
  double learning_rate = 1.5e-3;
  double weight_decay = 0.01;
};

}  // namespace syncline::fashion_mnist
