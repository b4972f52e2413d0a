"""DistributedDataParallel as ``torchrun`` starts it: one process for each device, a sampler, gathered losses."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

DEVICE = os.environ["DEVICE"]


def main():
    rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("gloo")
    device = torch.device(DEVICE, rank) if DEVICE != "cpu" else torch.device("cpu")
    if DEVICE != "cpu":
        torch.cuda.set_device(rank)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)).to(device)
    wrapped = DistributedDataParallel(net, device_ids=None if DEVICE == "cpu" else [rank])
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1, momentum=0.9)
    data = TensorDataset(torch.randn(64, 8), torch.randint(0, 3, (64,)))
    sampler = DistributedSampler(data, shuffle=True)
    losses = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(data, batch_size=8, sampler=sampler, pin_memory=DEVICE != "cpu"):
            loss = nn.functional.cross_entropy(wrapped(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            losses.append(mean)
    parts = [torch.empty_like(losses[-1]) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, losses[-1])
    assert {loss.device for loss in (*losses, *parts)} == {device}
    gathered = [part.item() for part in parts]
    if rank == 0:
        print(
            [loss.item() for loss in losses], len(gathered), [parameter.sum().item() for parameter in net.parameters()]
        )
    del wrapped  # while its tensors live: its end waits for gloo's thread, which may have to release the last of them
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
