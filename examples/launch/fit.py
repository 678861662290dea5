"""A Lightning program that does not care how it is started: under `srun` and `torchrun` it has every rank."""

import gc
import json
import os

import lightning
import torch


class Line(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return (self.layer(batch[0]) ** 2).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_train_start(self) -> None:
        seen = len(self.trainer.train_dataloader) * self.trainer.world_size * 8
        print(json.dumps({"what": "fit", "world": self.trainer.world_size, "rank": self.global_rank, "samples": seen}))


def main() -> None:
    data = torch.utils.data.TensorDataset(torch.randn(64, 4))
    gpus = torch.cuda.is_available()
    trainer = lightning.Trainer(
        accelerator="gpu" if gpus else "cpu",
        devices="auto" if gpus else int(os.environ["SHOAL_GPUS_PER_NODE"]),
        num_nodes=int(os.environ["SHOAL_NODES"]),
        strategy="ddp",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Line(), torch.utils.data.DataLoader(data, batch_size=8))


if __name__ == "__main__":
    main()
    # Before Python ends: threads of gloo that are still at work then would crash it. The model, in a circle, has them.
    gc.collect()
    torch.distributed.destroy_process_group()
