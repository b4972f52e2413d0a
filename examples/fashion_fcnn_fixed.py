"""The fully connected network of ``fashion_fcnn.py``, corrected.

What changed:
  * batches of 64 instead of single images, with the learning rate to match;
  * the loaders pin their batches, so that ``.to(device, non_blocking=True)`` does not hold up the host;
  * the loss is summed on the device and read once per epoch;
  * the accuracy loop moves its images and labels too, counts on the device, and reads the count once.

deviceguard has nothing to warn about here:

    deviceguard run --simulate cuda examples/fashion_fcnn_fixed.py
"""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
pin = torch.cuda.is_available()

EPOCHS = 2
BATCH_SIZE = 64


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
trainloader = DataLoader(Clothes(patterns, 1280), batch_size=BATCH_SIZE, shuffle=True, pin_memory=pin)
testloader = DataLoader(Clothes(patterns, 192), batch_size=BATCH_SIZE, pin_memory=pin)

net = Net()
net.to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)

start = time.time()
for epoch in range(EPOCHS):
    running_loss = torch.zeros((), device=device)
    for images, labels in trainloader:
        images = images.to(device, non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        images = images.view(images.shape[0], -1)

        optimizer.zero_grad()
        outputs = net(images)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()

        running_loss += loss.detach()
    print(f"epoch {epoch + 1}: loss {running_loss.item() / len(trainloader):.4f}, {time.time() - start:.1f} s")

net.eval()
correct = torch.zeros((), dtype=torch.long, device=device)
total = 0
with torch.no_grad():
    for images, labels in testloader:
        images = images.to(device, non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        images = images.view(images.shape[0], -1)
        outputs = net(images)
        predicted = outputs.argmax(dim=1)
        total += labels.size(0)
        correct += (predicted == labels).sum()
print(f"accuracy on {total} test images: {100 * correct.item() / total:.1f} %")
