"""A GAN in Lightning: two optimizers in one step, by hand."""

import sys

import lightning
import torch
from digest import tell, tell_line
from torch import nn

base, out = sys.argv[1:]


class Gan(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(
            nn.Linear(64, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 1024), nn.Tanh()
        )
        self.critic = nn.Sequential(
            nn.Linear(1024, 768), nn.LeakyReLU(0.2), nn.Linear(768, 768), nn.LeakyReLU(0.2), nn.Linear(768, 1)
        )
        self.loss = nn.BCEWithLogitsLoss()

    def training_step(self, batch, number):
        of_generator, of_critic = self.optimizers()
        real, fake = torch.ones(len(batch), 1), torch.zeros(len(batch), 1)
        made = self.generator(torch.randn(len(batch), 64))

        self.toggle_optimizer(of_critic)
        critics = self.loss(self.critic(batch), real) + self.loss(self.critic(made.detach()), fake)
        self.manual_backward(critics)
        of_critic.step()
        of_critic.zero_grad()
        self.untoggle_optimizer(of_critic)

        self.toggle_optimizer(of_generator)
        generators = self.loss(self.critic(made), real)
        self.manual_backward(generators)
        of_generator.step()
        of_generator.zero_grad()
        self.untoggle_optimizer(of_generator)
        self.log_dict({"critic": critics, "generator": generators})
        tell_line("loss", critics.item().hex(), generators.item().hex())

    def configure_optimizers(self):
        return (
            torch.optim.Adam(self.generator.parameters(), lr=2e-4, betas=(0.5, 0.999)),
            torch.optim.Adam(self.critic.parameters(), lr=2e-4, betas=(0.5, 0.999)),
        )


lightning.seed_everything(0)
module = Gan()
loader = torch.utils.data.DataLoader(torch.randn(384, 1024), batch_size=16)
trainer = lightning.Trainer(
    max_epochs=1, accelerator="cpu", devices=1, default_root_dir=out, logger=False, enable_progress_bar=False,
    enable_model_summary=False,
)  # fmt: skip
trainer.fit(module, loader)
tell(module, *trainer.optimizers)
