"""A Lightning Trainer: fit with validation and a checkpoint, test, predict, load the checkpoint again."""

import os
import tempfile
import warnings

import lightning.pytorch as pl
import torch
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
from torch.utils.data import DataLoader

DEVICE = os.environ["DEVICE"]


class Model(BoringModel):
    """Notes its losses and where it was trained."""

    def __init__(self):
        super().__init__()
        self.losses, self.places = [], set()

    def training_step(self, batch, batch_idx):
        output = super().training_step(batch, batch_idx)
        self.places.add((batch.device.type, self.device.type))
        self.losses.append(output["loss"].detach())
        self.log("train_loss", output["loss"], on_epoch=True)
        return output


class Data(pl.LightningDataModule):
    """Random rows, in batches that are worth a launch."""

    def loader(self):
        return DataLoader(RandomDataset(32, 1024), batch_size=64)

    train_dataloader = val_dataloader = test_dataloader = predict_dataloader = loader


def main():
    warnings.simplefilter("ignore")
    pl.seed_everything(0, verbose=False)
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            default_root_dir=folder,
            accelerator={"cuda": "gpu"}.get(DEVICE, DEVICE),
            devices=1,
            max_epochs=2,
            limit_train_batches=16,
            limit_val_batches=4,
            gradient_clip_val=0.5,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        model, data = Model(), Data()
        trainer.fit(model, datamodule=data)
        logged = trainer.callback_metrics["train_loss"].item()
        tested = trainer.test(model, datamodule=data, verbose=False)
        predicted = trainer.predict(model, datamodule=data)
        again = Model.load_from_checkpoint(trainer.checkpoint_callback.best_model_path)
    assert model.places == {(DEVICE, DEVICE)}
    print([loss.item() for loss in model.losses], tested, torch.cat(predicted).sum().item(), trainer.global_step)
    print([parameter.sum().item() for parameter in again.parameters()], logged)


if __name__ == "__main__":
    main()
