// The cluster: my jobs with reasons, free GPUs by type, the queue of everybody, fair share and limits.
import {element, number, span} from "./table.js";
import {tableOf} from "./detail.js";

const LOOK_MS = 15000;

export class Cluster {
  constructor(root, get) { this.root = root; this.get = get; this.ticket = 0; }

  hide() { this.ticket = 0; }

  async show() {
    if (this.ticket) return;
    const ticket = this.ticket = Date.now();
    this.root.replaceChildren(element("p", "dim", "asking Slurm …"));
    while (ticket === this.ticket) {
      try {
        const found = await this.get("/api/cluster");
        if (ticket !== this.ticket) return;
        this.draw(found);
      } catch (error) { this.root.replaceChildren(element("p", "failed", error.message)); }
      await new Promise(resolve => setTimeout(resolve, LOOK_MS));
    }
  }

  draw(found) {
    const title = text => element("h3", "", text), none = text => element("p", "dim", text);
    const parts = [element("h2", "", found.name ? `Cluster ${found.name}` : "Cluster")];
    if (found.problem) parts.push(element("p", "failed", `my jobs are as last known: ${found.problem}`));
    parts.push(title("Free GPUs"), found.gpus.length ? tableOf(["PARTITION", "TYPE", "FREE", "", "WHOLE NODES", "NO JOBS NOW"], found.gpus.map(one => {
      const bar = element("td"), track = element("span", "track"), fill = element("i");
      fill.style.width = `${one.total ? 100 * one.free / one.total : 0}%`; track.append(fill); bar.append(track);
      return [one.partition, one.kind, `${one.free} of ${one.total}`, bar, `${one.whole_nodes} of ${one.nodes}`, one.closed ? `${one.closed} GPUs` : "-"];
    })) : none("Slurm tells of no GPUs"));
    const state = job => { const cell = element("td"); cell.append(element("span", job.state, job.state)); return cell; };
    parts.push(title(`My jobs (${found.jobs.length + found.jobs_left_out})`), found.jobs.length ? tableOf(["JOB", "STATE", "NAME", "NODE", "REASON", "START"], found.jobs.map(job =>
      [job.job_id, state(job), job.name, job.node || "-", job.reason ? `${job.reason} (${job.slurm_reason})` : "-", job.started ? `${job.state === "pending" ? "~" : ""}${new Date(job.started * 1000).toLocaleString()}` : "-"])) : none("none waits or runs"));
    parts.push(title("Queue of everybody"), found.queue.length ? tableOf(["PARTITION", "RUNNING", "WAITING", "WHY THEY WAIT"], found.queue.map(one =>
      [one.partition, one.running.toLocaleString(), one.pending.toLocaleString(), one.reasons.map(([sentence, word, count]) => `${count} × ${sentence} (${word})`).join("; ") || "-"])) : none("no job waits or runs, or Slurm shows none"));
    if (found.fair_shares.length) parts.push(title("Fair share"), tableOf(["ACCOUNT", "FACTOR", "SHARE", "USED"], found.fair_shares.map(one =>
      [one.account, one.factor === null ? "-" : number(one.factor), one.shares === null ? "-" : `${number(100 * one.shares)} %`, one.usage === null ? "-" : `${number(100 * one.usage)} %`])), none("a factor near 1 means that little of the share was used; near 0, that much more than it was"));
    const limits = found.limits.filter(one => one.max_time_s || one.max_gpus || one.max_jobs);
    if (limits.length) parts.push(title("Limits"), tableOf(["OF", "TIME", "GPUS", "JOBS"], limits.map(one => [one.what, one.max_time_s ? span(one.max_time_s) : "-", one.max_gpus ?? "-", one.max_jobs ?? "-"])));
    if (found.silent.length) parts.push(title("Not answered"), ...found.silent.map(text => none(text)));
    parts.push(none(`asked ${span(Date.now() / 1000 - found.asked)} ago`));
    this.root.replaceChildren(...parts);
  }
}
