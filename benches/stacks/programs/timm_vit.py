"""A ViT of timm with its LAMB, mixup, label smoothing and an average of the weights."""

import sys

import timm
import torch
from digest import tell, tell_line
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV3, random_seed

base, out = sys.argv[1:]
random_seed(0)
model = timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=10, drop_path_rate=0.1)
average = ModelEmaV3(model, decay=0.99)
optimizer = create_optimizer_v2(model, opt="lamb", lr=1e-3, weight_decay=0.02)
mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=10)
loss_of = SoftTargetCrossEntropy()
for _ in range(16):
    images, labels = mixup(torch.randn(16, 3, 64, 64), torch.randint(0, 10, (16,)))
    loss = loss_of(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    average.update(model)
    tell_line("loss", loss.item().hex())
torch.save(average.module.state_dict(), f"{out}.pt")
tell(model, average.module, optimizer)
