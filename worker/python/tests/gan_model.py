"""A tiny GAN, for a test and for the program that it starts."""
import torch
from torch import nn

STEPS = 30
ROWS = 32


def networks():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)), nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))


def make_batches():
    generator = torch.Generator().manual_seed(2)
    return [(torch.randn(ROWS, 1, generator=generator) * 0.5 + 3, torch.randn(ROWS, 2, generator=generator)) for _ in range(STEPS)]


def train(generator, discriminator, optimizers, part, apart):
    """`apart` returns a context for code that must not change the discriminator's gradients."""
    loss = nn.functional.softplus
    for real, noise in ((real[part], noise[part]) for real, noise in make_batches()):
        optimizers[1].zero_grad()
        (loss(-discriminator(real)) + loss(discriminator(generator(noise).detach()))).mean().backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        with apart(optimizers[1]):
            loss(-discriminator(generator(noise))).mean().backward()
        optimizers[0].step()
