"""A diffusion model of diffusers: its UNet, noise, schedule and average of the weights."""

import sys

import torch
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from diffusers.training_utils import EMAModel
from digest import tell, tell_line

base, out = sys.argv[1:]
torch.manual_seed(0)
model = UNet2DModel(
    sample_size=32, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(64, 128, 128),
    down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
)  # fmt: skip
average = EMAModel(model.parameters(), decay=0.99)
noises = DDPMScheduler(num_train_timesteps=1000)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
schedule = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=4, num_training_steps=16)
for _ in range(16):
    images, noise = torch.randn(4, 3, 32, 32), torch.randn(4, 3, 32, 32)
    steps = torch.randint(0, noises.config.num_train_timesteps, (4,))
    predicted = model(noises.add_noise(images, noise, steps), steps, return_dict=False)[0]
    loss = torch.nn.functional.mse_loss(predicted, noise)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    average.step(model.parameters())
    tell_line("loss", loss.item().hex())
model.save_pretrained(out)
average.copy_to(model.parameters())
tell(model, optimizer)
