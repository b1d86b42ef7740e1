#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Load on llama-server, packed and stock, one after the other: tokens/s, latency, memory, errors, equal answers.

Each client sends one streaming completion after the other: prompts of mixed length cut out of a text, some of them from
a fixed pool whose greedy answers must be the same each time, and it hangs up on some in the middle. Resident memory of
the server and its children is sampled; over the second half it should be flat. Standard library only; Linux.

  serve_load.py --minutes 30 --clients 16 --text book.txt --json load.json \\
    --run 'k4v4=build/release/cli/tersekv exec --kv k4v4 -- llama-server -m M.gguf -np 16 -c 139264 -kvu -b 512 -ub 512 -cram 256' \\
    --run 'stock-f16=llama-server -m M.gguf -np 4 -c 34816 -cram 256' \\
    --run 'stock-q8_0=llama-server -m M.gguf -np 8 -c 69632 -fa on -ctk q8_0 -ctv q8_0 -cram 256'

llama-server's own prompt cache grows for a long time (-cram, 8 GiB by itself): give all the same small one. Memory that
its history has not filled yet grows too: the first half should fill it. What fits into the same memory says `tersekv plan -m M.gguf --memory 4G --contexts 8704` (slots of so many tokens). A
command may begin with NAME=VALUE for its environment. Exit code: 0, or 1 when a server ended by itself, requests failed,
memory grew or, with --strict-greedy, an answer of the pool changed."""
import argparse
import datetime
import http.client
import json
import os
import platform
import random
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

COLUMNS = (("name", "run"), ("requests", "requests"), ("failed", "failed"), ("hung_up", "hung up"), ("prompt_tps", "prompt t/s"),
           ("generated_tps", "generated t/s"), ("first_p50", "first token p50 s"), ("first_p99", "p99"), ("total_p50", "request p50 s"),
           ("total_p99", "p99"), ("rss_peak_mib", "peak MiB"), ("rss_growth_percent", "growth %"), ("greedy", "greedy equal"))


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="append", required=True, metavar="NAME=COMMAND",
                        help="a server; --host and --port are added. Several: one after the other")
    parser.add_argument("--text", required=True, type=Path, help="where prompts are cut out of; some 100 KB or more")
    parser.add_argument("--minutes", type=float, default=30, help="of each run (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--shortest", type=int, default=512, help="prompt tokens (default: %(default)s)")
    parser.add_argument("--longest", type=int, default=8192, help="prompt tokens (default: %(default)s)")
    parser.add_argument("--generate", type=int, default=128, help="most tokens of an answer (default: %(default)s)")
    parser.add_argument("--pool", type=int, default=8, help="greedy prompts that come again and again (default: %(default)s)")
    parser.add_argument("--pool-share", type=float, default=0.3, help="part of the requests (default: %(default)s)")
    parser.add_argument("--hang-up-share", type=float, default=0.1, help="part of the requests (default: %(default)s)")
    parser.add_argument("--growth", type=float, default=2.0,
                        help="percent that memory may grow over the second half (default: %(default)s)")
    parser.add_argument("--strict-greedy", action="store_true", help="fail when an answer of the pool changes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    parser.add_argument("--logs", type=Path, help="folder for what the servers say (default: a temporary one)")
    args = parser.parse_args()
    if not 1 <= args.shortest <= args.longest:
        parser.error(f"--shortest {args.shortest} --longest {args.longest}: 1 at least, ascending")
    for run in args.run:
        if "=" not in run or not run.split("=", 1)[1].strip():
            parser.error(f"--run '{run}': write NAME=COMMAND")
    return args


class Server:
    def __init__(self, command, log):
        words = shlex.split(command)
        environment = dict(os.environ)
        while words and "=" in words[0].split("/")[0]:
            key, value = words.pop(0).split("=", 1)
            environment[key] = value
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.log = open(log, "w", encoding="utf-8")
        self.process = subprocess.Popen([*words, "--host", "127.0.0.1", "--port", str(self.port)], env=environment,
                                        stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True)

    def ask(self, path, body=None, timeout=600):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request("POST" if body is not None else "GET", path, json.dumps(body) if body is not None else None,
                               {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"{}")
        finally:
            connection.close()

    def wait(self, seconds=600):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with code {self.process.returncode} before it served: {self.log.name}")
            try:
                if self.ask("/health", timeout=5)[0] == 200:
                    return
            except (OSError, http.client.HTTPException, ValueError):
                pass
            time.sleep(0.2)
        raise RuntimeError(f"the server did not serve within {seconds} s: {self.log.name}")

    def resident(self):
        """Bytes of the process and its children."""
        parents = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                except OSError:
                    pass
        ours, total = {self.process.pid}, 0
        while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
            ours |= more
        for pid in ours:
            try:
                total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            except OSError:
                pass
        return total

    def stop(self):
        """Its exit code; None: it did not end when asked to."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = None
        self.log.close()
        return code


class Load:
    """The clients of one run, and what they saw."""

    def __init__(self, args, server, tokens):
        self.args, self.server, self.tokens = args, server, tokens
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self.open = set()  # connections
        self.requests = self.hung_up = self.prompt_tokens = self.generated = 0
        self.first, self.total, self.failures = [], [], []
        self.answers, self.repeats, self.equal = {}, 0, 0
        choose = random.Random(args.seed)
        self.pool = [self.cut(choose) for _ in range(args.pool)]

    def cut(self, choose):
        # As many short ones as long ones by order of magnitude.
        n = round(self.args.shortest * (self.args.longest / self.args.shortest) ** choose.random())
        begin = choose.randrange(max(1, len(self.tokens) - n))
        return self.tokens[begin:begin + n]

    def client(self, number):
        choose = random.Random(f"{self.args.seed} {number}")
        while not self.stopping.is_set():
            which = choose.randrange(len(self.pool)) if self.pool and choose.random() < self.args.pool_share else None
            prompt = self.pool[which] if which is not None else self.cut(choose)
            n = self.args.generate if which is not None else choose.randint(1, self.args.generate)
            leave = choose.randint(0, n) if which is None and choose.random() < self.args.hang_up_share else None
            try:
                self.request(prompt, n, which, leave)
            except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
                self.fail(f"{type(error).__name__}: {error}")

    def fail(self, why):
        if self.stopping.is_set():
            return
        with self.lock:
            self.failures.append(why[:300])
        time.sleep(0.5)

    def request(self, prompt, n, which, leave):
        """leave: the client hangs up behind so many pieces; 0: before the first one."""
        body = {"prompt": prompt, "n_predict": n, "stream": True, "temperature": 0 if which is not None else 0.8,
                "cache_prompt": which is None, "return_tokens": True, "ignore_eos": True}
        start = time.monotonic()
        connection, sock = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=900), None
        try:
            connection.connect()
            sock = connection.sock
            with self.lock:
                self.open.add(sock)
            connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
            if leave == 0:
                time.sleep(random.uniform(0, 1))
                return self.leave()
            answer = connection.getresponse()
            if answer.status != 200:
                return self.fail(f"HTTP {answer.status}: {answer.read(300).decode(errors='replace')}")
            tokens, first, last = [], None, None
            for line in answer:
                if self.stopping.is_set():
                    return None
                if not line.startswith(b"data: {"):
                    continue
                last = json.loads(line[6:])
                if "error" in last:
                    return self.fail(f"in the stream: {last['error']}")
                first = first or time.monotonic() - start
                tokens += last.get("tokens", [])
                if leave is not None and len(tokens) >= leave:
                    return self.leave()
            if last is None or not last.get("stop"):
                return self.fail("the stream ended early")
            self.done(last, tokens, first, time.monotonic() - start, which)
        finally:
            with self.lock:
                self.open.discard(sock)
            connection.close()

    def stop(self, clients):
        """Ends all requests: a server waits for them before it ends."""
        self.stopping.set()
        with self.lock:
            for s in self.open:
                try:
                    s.shutdown(socket.SHUT_RDWR)
                except (OSError, AttributeError):
                    pass
        for client in clients:
            client.join(30)

    def leave(self):
        with self.lock:
            self.hung_up += 1

    def done(self, last, tokens, first, total, which):
        with self.lock:
            self.requests += 1
            self.first.append(first)
            self.total.append(total)
            self.prompt_tokens += last["timings"]["prompt_n"]
            self.generated += last["timings"]["predicted_n"]
            if which is None:
                return
            if which in self.answers:
                self.repeats += 1
                self.equal += tokens == self.answers[which]
            else:
                self.answers[which] = tokens


def percentile(values, part):
    values = sorted(values)
    return round(values[min(len(values) - 1, int(part * len(values)))], 3) if values else None


def growth(samples):
    """Percent from the third quarter of the run to the last one, by their means."""
    third, last = samples[len(samples) // 2:len(samples) * 3 // 4], samples[len(samples) * 3 // 4:]
    if not third or not last:
        return None
    return round(100 * (sum(last) / len(last) / (sum(third) / len(third)) - 1), 2)


def run_one(args, name, command, logs):
    print(f"{name}: {command}", file=sys.stderr)
    server = Server(command, logs / f"{name}.log")
    try:
        server.wait()
        code, answer = server.ask("/tokenize", {"content": args.text.read_text(encoding="utf-8", errors="replace")})
        if code != 200 or len(answer.get("tokens", [])) <= args.longest:
            raise RuntimeError(f"{args.text} gives {len(answer.get('tokens', []))} tokens (HTTP {code}): more than --longest are needed")
        load = Load(args, server, answer["tokens"])
        clients = [threading.Thread(target=load.client, args=(i,), daemon=True) for i in range(args.clients)]
        samples, start = [server.resident()], time.monotonic()
        for client in clients:
            client.start()
        seconds, shown = args.minutes * 60, 0
        period = min(5, seconds / 40)
        while (now := time.monotonic() - start) < seconds and server.process.poll() is None:
            time.sleep(period)
            samples.append(server.resident())
            if now - shown >= 10:
                shown = now
                print(f"\r  {now:.0f} of {seconds:.0f} s: {load.requests} requests, {load.generated / now:.1f} tokens/s generated, "
                      f"{len(load.failures)} failed, {samples[-1] / 2**20:.0f} MiB ", end="", file=sys.stderr, flush=True)
        elapsed = time.monotonic() - start
        died = server.process.poll()
        load.stop(clients)
        print(file=sys.stderr)
    finally:
        ended = server.stop()
    return {"name": name, "command": command, "clients": args.clients, "seconds": round(elapsed, 1), "requests": load.requests,
            "failed": len(load.failures), "failures": load.failures[:20], "hung_up": load.hung_up,
            "prompt_tps": round(load.prompt_tokens / elapsed, 1), "generated_tps": round(load.generated / elapsed, 1),
            "first_p50": percentile(load.first, .5), "first_p99": percentile(load.first, .99),
            "total_p50": percentile(load.total, .5), "total_p99": percentile(load.total, .99),
            "rss_start_mib": round(samples[0] / 2**20), "rss_peak_mib": round(max(samples) / 2**20),
            "rss_growth_percent": growth(samples), "rss_mib": [round(s / 2**20, 1) for s in samples],
            "greedy_repeats": load.repeats, "greedy_equal": load.equal, "greedy": f"{load.equal} of {load.repeats}",
            "died": died, "exit_code": ended}


def faults(args, row):
    if row["died"] is not None:
        yield f"the server ended by itself with code {row['died']}"
    elif row["exit_code"] is None:
        yield "the server did not end within 120 s of SIGTERM"
    if row["failed"]:
        yield f"{row['failed']} requests failed, the first: {row['failures'][0]}"
    if not row["requests"]:
        yield "no request was served to its end"
    if row["rss_growth_percent"] is not None and row["rss_growth_percent"] > args.growth:
        yield f"memory grew by {row['rss_growth_percent']}% from the third quarter to the last"
    if args.strict_greedy and row["greedy_equal"] < row["greedy_repeats"]:
        yield f"{row['greedy_repeats'] - row['greedy_equal']} of {row['greedy_repeats']} greedy answers were not the first one's"


def commit():
    found = subprocess.run(["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return found.stdout.strip() or None


def processor():
    for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
        if line.startswith("model name"):
            return f"{line.split(':', 1)[1].strip()}, {os.cpu_count()} CPUs"
    return f"{platform.machine()}, {os.cpu_count()} CPUs"


def main():
    args = options()
    logs = args.logs or Path(tempfile.mkdtemp(prefix="serve-load-"))
    logs.mkdir(parents=True, exist_ok=True)
    rows, bad = [], []
    for run in args.run:
        name, command = run.split("=", 1)
        try:
            rows.append(run_one(args, name, command, logs))
            bad += [f"{name}: {fault}" for fault in faults(args, rows[-1])]
        except (RuntimeError, OSError) as error:
            bad.append(f"{name}: {error}")
    print("| " + " | ".join(title for _, title in COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    for row in rows:
        print("| " + " | ".join(str(row[key]) for key, _ in COLUMNS) + " |")
    if args.json:
        result = {"rows": rows, "commit": commit(), "machine": processor(),
                  "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for line in bad:
        print(line, file=sys.stderr)
    print(f"what the servers said: {logs}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
