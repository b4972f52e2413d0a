"""A small CNN that turns RGB images into false-colour ones: "the loss is fine, yet the result looks untrained".

What is wrong: ``model`` and ``mymodel_false`` were meant to be one network, and are not what the optimizer trains and
the evaluation runs. PyTorch says nothing. There are three ways to get there, chosen by ``--variant``:

  * ``evaluated-copy`` (the default): ``mymodel_false`` is trained, its untouched copy ``model`` is evaluated and saved;
  * ``optimizer-copy``: the training runs ``mymodel_false``, the optimizer was built over its copy ``model``, and so
    nothing is trained;
  * ``replaced-parameters``: the optimizer was built before the move, and the move replaced every parameter (as it does
    on XLA, and on any device under the setting used here), and so nothing is trained.

In all three the losses are kept together with their graphs, so that memory only grows.

    deviceguard run --simulate cuda examples/false_colour.py
    deviceguard run --simulate cuda examples/false_colour.py --variant optimizer-copy
    deviceguard run --simulate cuda examples/false_colour.py --variant replaced-parameters

The corrected script is ``false_colour_fixed.py``.
"""

import argparse
import copy
import tempfile
from pathlib import Path

import torch
from torch import nn

parser = argparse.ArgumentParser(description="Train a CNN that turns RGB images into false-colour ones.")
parser.add_argument(
    "--variant", choices=["evaluated-copy", "optimizer-copy", "replaced-parameters"], default="evaluated-copy"
)
args = parser.parse_args()

torch.manual_seed(0)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")

EPOCHS = 6
BATCH_SIZE = 16


class FalseColourNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 3, 3, padding=1),
        )

    def forward(self, x):
        return self.layers(x)


def make_images(count):
    """Smooth RGB images, and what an infrared film would make of them."""
    rgb = nn.functional.interpolate(torch.rand(count, 3, 8, 8), size=(32, 32), mode="bilinear")
    red, green, blue = rgb.unbind(dim=1)
    infrared = (green - 0.5 * blue).clamp(min=0)
    return rgb, torch.stack([infrared, red, green * blue], dim=1)


# The images are few: they go to the device once, and the batches are taken there.
train_rgb, train_false = (images.to(device) for images in make_images(320))
test_rgb, test_false = (images.to(device) for images in make_images(64))

mymodel_false = FalseColourNet()
if args.variant == "evaluated-copy":
    model = copy.deepcopy(mymodel_false)
    model = model.to(device)
    mymodel_false = mymodel_false.to(device)
    optimizer = torch.optim.AdamW(mymodel_false.parameters(), lr=0.003)
elif args.variant == "optimizer-copy":
    model = copy.deepcopy(mymodel_false)
    model = model.to(device)
    mymodel_false = mymodel_false.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
else:
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    optimizer = torch.optim.AdamW(mymodel_false.parameters(), lr=0.003)
    model = mymodel_false.to(device)
criterion = nn.MSELoss()

losses = []
mymodel_false.train()
for epoch in range(EPOCHS):
    order = torch.randperm(len(train_rgb), device=device)
    for batch in order.split(BATCH_SIZE):
        optimizer.zero_grad()
        output = mymodel_false(train_rgb[batch])
        loss = criterion(output, train_false[batch])
        loss.backward()
        optimizer.step()
        losses.append(loss)
    print(f"epoch {epoch + 1}: training loss {loss.item():.4f}")
print(f"mean training loss {torch.stack(losses).mean().item():.4f}")

model.eval()
with torch.no_grad():
    output = model(test_rgb)
    print(f"test loss {criterion(output, test_false).item():.4f}")
with tempfile.TemporaryDirectory() as folder:
    torch.save(model.state_dict(), Path(folder) / "false_colour.pt")
