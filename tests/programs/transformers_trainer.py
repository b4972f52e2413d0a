"""A transformers Trainer over a tiny GPT-2: train with accumulation, evaluate, save, load, generate."""

import os
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

DEVICE = os.environ["DEVICE"]


class Sentences(Dataset):
    """Random token ids, the same at each run."""

    def __init__(self, count):
        self.ids = torch.randint(3, 60, (count, 16), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index].clone()}


def main():
    set_seed(0)
    config = GPT2Config(
        vocab_size=64,
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = GPT2LMHeadModel(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=6,
            per_device_train_batch_size=8,
            learning_rate=5e-3,
            gradient_accumulation_steps=2,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=DEVICE == "cpu",
            disable_tqdm=True,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=Sentences(48), eval_dataset=Sentences(16))
        trainer.train()
        evaluated = trainer.evaluate()["eval_loss"]
        trainer.save_model(folder)
        GPT2LMHeadModel.from_pretrained(folder)
    assert next(trainer.model.parameters()).device.type == trainer.args.device.type == DEVICE
    trainer.model.eval()
    ids = Sentences(2).ids.to(trainer.args.device)
    mask = torch.ones_like(ids)
    generated = trainer.model.generate(ids, attention_mask=mask, max_new_tokens=4, do_sample=False)
    assert generated.device.type == DEVICE
    print([entry["loss"] for entry in trainer.state.log_history if "loss" in entry], evaluated, generated.tolist())


if __name__ == "__main__":
    main()
