"""A fully connected network on small clothing-like images: "my GPU is no faster than my CPU, and then it crashes".

What is wrong:
  * the images and labels come one at a time (``batch_size=1``), from pageable memory, so that the GPU mostly waits;
  * the loss is read with ``.item()`` at every step, and each read makes the host wait for the GPU;
  * the accuracy loop forgets ``images.to(device)``: on a GPU the script dies there, after all the training.

On a CPU none of this shows. To see it without a GPU:

    deviceguard run --simulate cuda examples/fashion_fcnn.py

The corrected script is ``fashion_fcnn_fixed.py``.
"""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")

EPOCHS = 2


class Clothes(Dataset):
    """28x28 grey images of ten kinds of clothes, each drawn anew from its pattern with some noise."""

    def __init__(self, patterns, size):
        self.patterns = patterns
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        label = index % len(self.patterns)
        return self.patterns[label] + 0.5 * torch.randn(1, 28, 28), label


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(784, 1024)
        self.fc2 = nn.Linear(1024, 1024)
        self.fc3 = nn.Linear(1024, 10)

    def forward(self, x):
        x = torch.relu(self.fc1(x))
        x = torch.relu(self.fc2(x))
        return self.fc3(x)


patterns = nn.functional.interpolate(torch.rand(10, 1, 7, 7), size=(28, 28), mode="bilinear")
trainloader = DataLoader(Clothes(patterns, 200), batch_size=1, shuffle=True)
testloader = DataLoader(Clothes(patterns, 100), batch_size=1)

net = Net()
net.to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.003, momentum=0.9)

start = time.time()
for epoch in range(EPOCHS):
    running_loss = 0.0
    for images, labels in trainloader:
        images = images.to(device)
        labels = labels.to(device)
        images = images.view(images.shape[0], -1)

        optimizer.zero_grad()
        outputs = net(images)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()

        running_loss += loss.item()
    print(f"epoch {epoch + 1}: loss {running_loss / len(trainloader):.4f}, {time.time() - start:.1f} s")

correct = 0
total = 0
with torch.no_grad():
    for images, labels in testloader:
        images = images.view(images.shape[0], -1)
        outputs = net(images)
        predicted = outputs.argmax(dim=1)
        total += labels.size(0)
        correct += (predicted == labels).sum().item()
print(f"accuracy on {total} test images: {100 * correct / total:.1f} %")
