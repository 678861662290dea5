"""A Lightning program as people write it: two nodes of four devices."""

import argparse

import lightning as L
from torch.utils.data import DataLoader


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data")
    parser.add_argument("--num-workers", type=int, default=8)
    args = parser.parse_args()
    trainer = L.Trainer(devices=4, num_nodes=2, strategy="ddp", max_epochs=40)
    trainer.fit(None, DataLoader(args.data, num_workers=args.num_workers))


if __name__ == "__main__":
    main()
