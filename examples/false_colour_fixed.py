"""The false-colour CNN of ``false_colour.py``, corrected.

What changed:
  * there is one network under one name: it is moved first, the optimizer is built over it after that (which is right
    whether or not the move replaces its parameters), and it is what is trained, evaluated and saved;
  * the losses are detached before they are kept, so that no graph outlives its step.

deviceguard has nothing to warn about here:

    deviceguard run --simulate cuda examples/false_colour_fixed.py
"""

import tempfile
from pathlib import Path

import torch
from torch import nn

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

model = FalseColourNet()
model = model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
criterion = nn.MSELoss()

losses = []
model.train()
for epoch in range(EPOCHS):
    order = torch.randperm(len(train_rgb), device=device)
    for batch in order.split(BATCH_SIZE):
        optimizer.zero_grad()
        output = model(train_rgb[batch])
        loss = criterion(output, train_false[batch])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    print(f"epoch {epoch + 1}: training loss {loss.item():.4f}")
print(f"mean training loss {torch.stack(losses).mean().item():.4f}")

model.eval()
with torch.no_grad():
    output = model(test_rgb)
    print(f"test loss {criterion(output, test_false).item():.4f}")
with tempfile.TemporaryDirectory() as folder:
    torch.save(model.state_dict(), Path(folder) / "false_colour.pt")
