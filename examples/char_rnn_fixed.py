"""The character RNN of ``char_rnn.py``, corrected.

What changed:
  * ``init_hidden`` makes the hidden state where the model's parameters are, so that nothing is uploaded for it and
    ``sample`` cannot forget it;
  * the loader pins its batches, so that ``.to(device, non_blocking=True)`` does not hold up the host;
  * losses and accuracies stay on the device, and their means are read every 25 steps;
  * ``sample`` keeps its characters on the device and reads them once, at the end.

deviceguard has nothing to warn about here:

    deviceguard run --simulate cuda examples/char_rnn_fixed.py
"""

import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

random.seed(0)
torch.manual_seed(0)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")

SEQUENCE = 32
BATCH_SIZE = 32
REPORT_EVERY = 25

people = ["the cat", "the old man", "a tired student", "my sister", "the dog next door"]
actions = ["looks at", "waits for", "walks past", "runs after", "forgets"]
things = ["the bridge", "a red car", "the last train", "an open window", "the garden"]
text = " ".join(f"{random.choice(people)} {random.choice(actions)} {random.choice(things)}." for _ in range(3000))
chars = sorted(set(text))
char_to_index = {char: index for index, char in enumerate(chars)}


class Windows(Dataset):
    """Consecutive pieces of the text, each with the same piece one character later as its target."""

    def __init__(self, text):
        self.data = torch.tensor([char_to_index[char] for char in text])

    def __len__(self):
        return (len(self.data) - 1) // SEQUENCE

    def __getitem__(self, index):
        first = index * SEQUENCE
        return self.data[first : first + SEQUENCE], self.data[first + 1 : first + SEQUENCE + 1]


class CharRNN(nn.Module):
    def __init__(self, n_chars, n_hidden=128):
        super().__init__()
        self.n_chars = n_chars
        self.n_hidden = n_hidden
        self.rnn = nn.RNN(n_chars, n_hidden, batch_first=True)
        self.fc = nn.Linear(n_hidden, n_chars)

    def forward(self, x, hidden):
        out, hidden = self.rnn(F.one_hot(x, self.n_chars).float(), hidden)
        return self.fc(out), hidden

    def init_hidden(self, batch_size):
        return torch.zeros(1, batch_size, self.n_hidden, device=self.fc.weight.device)


def sample(model, start, length):
    model.eval()
    x = torch.tensor([[char_to_index[start]]], device=device)
    hidden = model.init_hidden(1)
    written = [x]
    with torch.no_grad():
        for _ in range(length):
            output, hidden = model(x, hidden)
            x = torch.multinomial(F.softmax(output[:, -1], dim=1), 1)
            written.append(x)
    return "".join(chars[index] for index in torch.cat(written, dim=1)[0].tolist())


loader = DataLoader(
    Windows(text), batch_size=BATCH_SIZE, shuffle=True, drop_last=True, pin_memory=torch.cuda.is_available()
)
model = CharRNN(len(chars)).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)

losses = []
accuracies = []
for step, (x, y) in enumerate(loader, start=1):
    x = x.to(device, non_blocking=True)
    y = y.to(device, non_blocking=True)
    hidden = model.init_hidden(BATCH_SIZE)

    optimizer.zero_grad()
    output, hidden = model(x, hidden)
    loss = criterion(output.reshape(-1, len(chars)), y.reshape(-1))
    loss.backward()
    optimizer.step()

    losses.append(loss.detach())
    accuracies.append((output.detach().argmax(dim=2) == y).float().mean())
    if step % REPORT_EVERY == 0:
        means = torch.stack([torch.stack(losses).mean(), torch.stack(accuracies).mean()]).tolist()
        print(f"step {step}: loss {means[0]:.3f}, accuracy {means[1]:.3f}")
        losses.clear()
        accuracies.clear()

print(sample(model, "t", 120))
