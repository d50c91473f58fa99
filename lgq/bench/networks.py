"""What a quantizer's time is compared with: a training step of the networks around it, without one."""

import torch

from lgq.bench.timing import interleaved
from lgq.models.autoencoder import Decoder, Encoder
from lgq.training.settings import TokenizerRun


def networks_ms(run: TokenizerRun, tokens: int, device: torch.device, *, repeats: int) -> float:
    """Best time of encoder, decoder, l1 and AdamW on as many images as give so many tokens."""
    torch.manual_seed(run.seed)
    encoder, decoder = Encoder(run.backbone).to(device), Decoder(run.backbone).to(device)
    optimizer = torch.optim.AdamW([*encoder.parameters(), *decoder.parameters()], lr=run.learning_rate)
    side = run.image_size // run.backbone.factor
    images = torch.rand(max(1, tokens // side**2), 3, run.image_size, run.image_size, device=device)

    def step() -> None:
        with run.autocast(device.type):
            loss = (decoder(encoder(images)) - images).abs().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    return interleaved({"step": step}, repeats=repeats, device=device)["step"]
