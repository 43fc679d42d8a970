/* Linear regression in C: every worker makes its own samples of y = 2 a - 3 b + 1 and the servers fit them all.
 *
 *   syncline run --standalone --servers 2 --nproc-per-node 2 -- build/release/linear_regression
 *   rank 0 of 2: y = 2.000 a + -3.000 b + 1.000 after 200 steps
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "syncline.h"

enum { kSteps = 200, kSamples = 32 };

static syncline_session* session = NULL;
static syncline_options* options = NULL;

/* Ends the process so that `syncline run` knows whether starting again helps. */
static void check(syncline_code code) {
  if (code == SYNCLINE_OK) return;
  const int exit_code = syncline_last_error_exit_code();
  fprintf(stderr, "linear_regression: error: %s\n", syncline_last_error());
  syncline_session_free(session);
  syncline_options_free(options);
  exit(exit_code);
}

/* Uniform in [-1, 1): a linear congruential generator is random enough for this. */
static float uniform(uint64_t* state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (float)(*state >> 40) / (float)(1 << 23) - 1.0f;
}

/* Of the mean over a batch of (prediction - y)^2 / 2; that mean. */
static float gradients(const float weight[2], float bias, uint64_t* random,
                       float gradient[3]) {
  float loss = 0;
  gradient[0] = gradient[1] = gradient[2] = 0;
  for (int i = 0; i < kSamples; ++i) {
    const float a = uniform(random);
    const float b = uniform(random);
    const float y = 2 * a - 3 * b + 1;
    const float error = weight[0] * a + weight[1] * b + bias - y;
    loss += error * error / 2 / kSamples;
    gradient[0] += error * a / kSamples;
    gradient[1] += error * b / kSamples;
    gradient[2] += error / kSamples;
  }
  return loss;
}

static uint32_t declare(const char* name, uint64_t elements, float* data) {
  const syncline_tensor tensor = {.struct_size = sizeof tensor,
                                  .name = name,
                                  .dimensions = 1,
                                  .shape = &elements,
                                  .dtype = SYNCLINE_FLOAT32,
                                  .data = data};
  uint32_t id = 0;
  check(syncline_declare(session, &tensor, &id));
  return id;
}

int main(void) {
  check(syncline_options_from_env(&options)); /* what `syncline run` sets */
  check(syncline_options_set(options, "optimizer", "sgd:lr=0.5"));
  check(syncline_options_set(options, "push", "fp32"));
  check(syncline_options_set(options, "publish", "fp32"));
  check(syncline_session_create(options, &session));

  float weight[2] = {0, 0};
  float bias = 0;
  const uint32_t weight_id = declare("weight", 2, weight);
  const uint32_t bias_id = declare("bias", 1, &bias);
  check(syncline_start(session, SYNCLINE_FOREVER)); /* waits for the other workers */

  uint64_t random = syncline_rank(session) + 1; /* other samples on each worker */
  while (syncline_step(session) < kSteps) {
    float gradient[3];
    const uint64_t step = syncline_step(session);
    const float loss = gradients(weight, bias, &random, gradient);
    syncline_report_loss(session, step, loss, kSamples);
    check(syncline_push_pull(session, weight_id, gradient, SYNCLINE_FLOAT32, kSamples));
    check(syncline_push_pull(session, bias_id, gradient + 2, SYNCLINE_FLOAT32, kSamples));
    check(syncline_wait_all(session, SYNCLINE_FOREVER));
  }
  printf("rank %u of %u: y = %.3f a + %.3f b + %.3f after %llu steps\n",
         syncline_rank(session), syncline_world_size(session), weight[0], weight[1], bias,
         (unsigned long long)syncline_step(session));
  const float distance = fabsf(weight[0] - 2) + fabsf(weight[1] + 3) + fabsf(bias - 1);

  check(syncline_leave(session));
  syncline_session_free(session);
  syncline_options_free(options);
  return distance < 0.01f ? EXIT_SUCCESS : EXIT_FAILURE;
}
