"""DiLoCo with torchft, in miniature: replicas train apart and average every few steps. Runs on CPUs.

Launched with `launch = "replicas"`. A replica that dies is started again by shoal and healed by its peers; when all of
them start over, each continues from $SHOAL_RESUME_FROM.
"""

import argparse
import json
import os
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torchft import Manager, ProcessGroupGloo
from torchft.local_sgd import DiLoCo

REPLICA = int(os.environ["REPLICA_GROUP_ID"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=6, help="outer steps")
    parser.add_argument("--sync-every", type=int, default=4, help="inner steps in each")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between inner steps")
    parser.add_argument(
        "--hang", default="", help="REPLICA:ROUND: this replica stands still from there on in its first attempt"
    )
    args = parser.parse_args()

    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda got, frame: stop.append(got))
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.5, nesterov=True)

    def state() -> dict[str, object]:
        return {"model": model.state_dict(), "inner": inner.state_dict(), "outer": outer.state_dict()}

    def load(saved: dict[str, dict[str, object]]) -> None:
        model.load_state_dict(saved["model"])
        inner.load_state_dict(saved["inner"])
        outer.load_state_dict(saved["outer"])

    group = ProcessGroupGloo(timeout=timedelta(seconds=20))
    manager = Manager(
        pg=group,
        state_dict=state,
        load_state_dict=load,
        min_replica_size=int(os.environ.get("SHOAL_MIN_REPLICAS", "1")),
        replica_id=f"replica_{REPLICA}_",
        use_async_quorum=False,
        # All begin with the same weights; else the first inner steps of all but one replica would be thrown away.
        init_sync=False,
        timeout=timedelta(seconds=20),
        quorum_timeout=timedelta(seconds=60),
    )
    resume = os.environ.get("SHOAL_RESUME_FROM")
    if resume:
        saved = torch.load(resume, weights_only=True)
        load(saved["state"])
        manager.load_state_dict(saved["manager"])
    say(rank, what="start", round=manager.current_step(), lighthouse=os.environ["TORCHFT_LIGHTHOUSE"])
    truth, seen = torch.arange(4.0), 0
    which, _, at = args.hang.partition(":")
    hangs = which == str(REPLICA) and ".attempt-1." in os.environ.get("SHOAL_RANK_GROUP", "")
    with DiLoCo(manager, [model], inner, outer, sync_every=args.sync_every, pin_memory=False):
        while manager.current_step() < args.rounds:
            before = manager.current_step()
            if hangs and before >= int(at):  # it may have come late, and skipped the rounds that the others did alone
                time.sleep(3600)
            seen += 1
            x = torch.randn(16, 4, generator=torch.Generator().manual_seed(100000 * REPLICA + 1000 * rank + seen))
            loss = ((model(x).squeeze(1) - x @ truth) ** 2).mean()
            inner.zero_grad()
            loss.backward()
            if world > 1:
                for weight in model.parameters():
                    dist.all_reduce(weight.grad)
                    weight.grad /= world
            inner.step()
            time.sleep(args.pause)
            now = manager.current_step()
            if now != before:
                peers = manager.num_participants()
                say(rank, what="round", round=now, loss=round(loss.item(), 5), replicas=peers)
                if rank == 0 and manager.participating_rank() == 0:
                    save({"state": state(), "manager": manager.state_dict()}, now)
            if stop:
                say(rank, what="stopped", round=now)
                break
    say(rank, what="end", round=manager.current_step(), weights=[round(w, 4) for w in model.weight[0].tolist()])
    manager.shutdown(wait=False)
    # Before Python ends: threads of gloo that are still at work then would crash it.
    group.shutdown()
    if world > 1:
        dist.destroy_process_group()


def save(what: dict[str, object], step: int) -> None:
    path = os.path.join(os.environ.get("SHOAL_OUTPUT_DIR", "."), f"model_{step:06d}.pth")
    torch.save(what, path + f".{REPLICA}.tmp")
    os.rename(path + f".{REPLICA}.tmp", path)


def say(rank: int, **what: object) -> None:
    where = {"replica": REPLICA, "rank": rank, "host": os.uname().nodename, "pid": os.getpid()}
    where["gpus"] = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    print(json.dumps({**where, **what, "t": round(time.time(), 2)}), flush=True)


if __name__ == "__main__":
    main()
