"""Cases of torch_test.py: gradients travel while backward computes, and forward waits layer by layer.

They test the order of events, and measure no times.
"""
import threading

import support
from torch_support import Optimizer, OptimizerTest, nn, torch

WIDTH = 300  # a layer's weights are above the 256 KiB for which the session wakes the thread that sends
BYTES = 4 * WIDTH * WIDTH


def layers(count):
    torch.manual_seed(3)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(count)))


class Overlap(OptimizerTest):
    """In each test the program waits at a point where only an exchange under way can end the wait."""

    def test_a_gradient_is_sent_and_its_weights_are_back_before_backward_comes_to_the_first_layer(self):
        model = layers(3)
        optimizer = self.optimizer(model)
        before = optimizer.session.stats
        seen = {}

        def arrived(name, bytes_pulled):
            """Blocks backward until `bytes_pulled` bytes have come back."""
            gave_up = threading.Event()
            timer = threading.Timer(support.PATIENCE / 4, gave_up.set)
            timer.start()
            while (stats := optimizer.session.stats).bytes_pulled - before.bytes_pulled < bytes_pulled and not gave_up.wait(0.001):
                pass
            timer.cancel()
            seen[name] = (stats.bytes_pushed - before.bytes_pushed, stats.bytes_pulled - before.bytes_pulled)

        model[1].weight.register_hook(lambda gradient: arrived("middle", BYTES))
        model[0].weight.register_hook(lambda gradient: arrived("first", 2 * BYTES))
        model(torch.ones(2, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.synchronize()
        # All bytes of the last layer, and then of the last two, are through, and none of the layers that backward has yet to reach.
        for name, layers_behind in (("middle", 1), ("first", 2)):
            for counted in seen[name]:
                self.assertGreaterEqual(counted, layers_behind * BYTES, (name, seen))
                self.assertLess(counted, (layers_behind + 1) * BYTES, (name, seen))

    def test_the_first_layer_computes_while_weights_of_the_others_are_on_their_way(self):
        models, optimizers = [layers(3), layers(3)], {}

        def join(rank):
            optimizers[rank] = Optimizer(models[rank], "sgd", 0.1, push="fp32", publish="fp32",
                                         session=self.options(rank=rank, world_size=2))

        threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for optimizer in optimizers.values():
            self.addCleanup(optimizer.session.close)
        model, session, other = models[0], optimizers[0].session, optimizers[1].session
        inputs = torch.ones(2, WIDTH)
        model(inputs).square().mean().backward()
        optimizers[0].step()
        order = []

        def give(number):
            """Pushes the other worker's gradients of a layer, without which its weights cannot be new."""
            for tensor in other._tensors[2 * number:2 * number + 2]:
                other.push_pull(tensor, torch.zeros(tensor.memory.shape))
            order.append(f"{number} is given")

        def computed(number):
            order.append(f"{number} has computed")
            if number < 2:
                order.append([session.is_ready(tensor) for tensor in session._tensors[2 * number:2 * number + 4:2]])
                give(number + 1)

        for number, layer in enumerate(model):
            layer.register_forward_hook(lambda *_, number=number: computed(number))
        rescue = threading.Timer(support.PATIENCE / 4, lambda: [give(number) for number in (1, 2)])  # of a forward that waits for all
        rescue.start()
        give(0)
        model(inputs)
        rescue.cancel()
        # Each layer's weights were new when it had computed, and the next one's were not.
        self.assertEqual(order, ["0 is given", "0 has computed", [True, False], "1 is given", "1 has computed", [True, False], "2 is given",
                                 "2 has computed"])
