"""A character RNN that writes sentences: "training on the GPU is slow, and sampling fails on the device".

What is wrong:
  * ``init_hidden`` makes the hidden state on the host, and the training loop uploads those zeros at every step;
  * the batches are uploaded from pageable memory;
  * the loss and the predictions go back to the host with ``.cpu().numpy()`` at every step, and tensors are printed at
    every step, and each of these makes the host wait for the GPU;
  * ``sample`` forgets to move the hidden state: on a GPU the script dies there, after all the training.

On a CPU none of this shows. To see it without a GPU:

    deviceguard run --simulate cuda examples/char_rnn.py

The corrected script is ``char_rnn_fixed.py``.
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
        return torch.zeros(1, batch_size, self.n_hidden)


def sample(model, start, length):
    model.eval()
    written = start
    x = torch.tensor([[char_to_index[start]]]).to(device)
    hidden = model.init_hidden(1)
    with torch.no_grad():
        for _ in range(length):
            output, hidden = model(x, hidden)
            x = torch.multinomial(F.softmax(output[:, -1], dim=1), 1)
            written += chars[x.item()]
    return written


loader = DataLoader(Windows(text), batch_size=BATCH_SIZE, shuffle=True, drop_last=True)
model = CharRNN(len(chars)).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)

losses = []
accuracies = []
for step, (x, y) in enumerate(loader):
    x = x.to(device)
    y = y.to(device)
    hidden = model.init_hidden(BATCH_SIZE).to(device)

    optimizer.zero_grad()
    output, hidden = model(x, hidden)
    loss = criterion(output.reshape(-1, len(chars)), y.reshape(-1))
    loss.backward()
    optimizer.step()

    losses.append(loss.detach().cpu().numpy())
    predicted = output.argmax(dim=2).cpu().numpy()
    accuracies.append((predicted == y.cpu().numpy()).mean())
    print("step", step, "loss", loss, "accuracy", accuracies[-1])

print(f"loss: {losses[0]:.3f} at the start, {losses[-1]:.3f} at the end")
print(sample(model, "t", 120))
