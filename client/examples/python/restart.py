#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An inference worker is killed and restarted: how long until it answers again, with its weights in a file or in a pool.

A supervisor gives requests to a worker. When the worker dies, the supervisor starts another one and sends the request again that was
under way. The program kills the worker (SIGKILL) while it works on a request, and measures until that request is answered, by parts.
It does so in turns for each way in which the worker gets its weights:

  gpupool       they lie in GPU memory of the pool, under a name. The first worker reads the file and publishes them; each further one
                opens the name, and copies nothing
  safetensors   from a file, by safetensors.torch.load_file() to the GPU
  torch         from a file, by torch.load(mmap=True) to the GPU

The files are in the page cache, as after a crash. All ways have to give the same answers. In the end the program kills the worker
with gpupool once more, and waits until the pools have all memory back but the weights. No other program should use the daemon
meanwhile. Models have random weights: llama (3.0 GB in bfloat16), llama-tiny, or any classifier of torchvision, such as resnet50.
"""
import contextlib
import math
import multiprocessing
import multiprocessing.connection
import pathlib
import random
import sys
import tempfile
import time

from common import WAIT_S, connect, fail, median, need, now, parse, parser_of, table, write_json

WAYS = ("gpupool", "safetensors", "torch")
LLAMAS = {
    "llama": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
              "vocab_size": 128256, "max_position_embeddings": 8192},
    "llama-tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                   "vocab_size": 512, "max_position_embeddings": 128},
}
PROMPT_TOKENS, NEW_TOKENS = 32, 8
IMAGE_SIDE = 224
NAME = "examples/restart/"  # of the weights of a model, with the model's name
BACK_S = 60  # until all memory of a worker that was killed has to be back
STARTS = 3  # workers that a request may end, before the supervisor gives up
PARTS = ("start", "imports", "context", "model", "weights", "first answer")


# --- models ---


def import_packages(model, *packages):
    need("torch", "transformers" if model in LLAMAS else "torchvision", *packages)


def make_model(name, device):
    """A model with random weights; on the device "meta": without memory."""
    import torch

    torch.manual_seed(0)
    with torch.device(device):
        if name not in LLAMAS:
            import torchvision
            return torchvision.models.get_model(name, weights=None).eval()
        from transformers import LlamaConfig, LlamaForCausalLM
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            return LlamaForCausalLM(LlamaConfig(**LLAMAS[name], tie_word_embeddings=False)).eval()
        finally:
            torch.set_default_dtype(before)


def tensors_of(model):
    """All parameters and buffers, those too that a state_dict leaves out."""
    return {name: tensor.detach() for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def assign(model, tensors):
    """Has a model use tensors as they are."""
    import torch

    for name in tensors_of(model):
        owner, _, leaf = name.rpartition(".")
        module = model.get_submodule(owner)
        if leaf in module._parameters:
            module._parameters[leaf] = torch.nn.Parameter(tensors[name], requires_grad=False)
        else:
            module._buffers[leaf] = tensors[name]


def make_request(model, seed):
    chance = random.Random(seed)
    if model in LLAMAS:
        return [chance.randrange(LLAMAS[model]["vocab_size"]) for _ in range(PROMPT_TOKENS)]
    return chance.randbytes(3 * IMAGE_SIDE * IMAGE_SIDE)


def answer(model, name, request, new_inputs):
    """Tokens, or classes, with their scores. new_inputs(shape, dtype) makes the tensor of the inputs on the GPU."""
    import torch

    with torch.no_grad():
        if name in LLAMAS:
            inputs = new_inputs((1, len(request)), torch.int64).copy_(torch.tensor([request]))
            output = model.generate(inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=NEW_TOKENS, do_sample=False,
                                    eos_token_id=None, pad_token_id=0, output_logits=True, return_dict_in_generate=True)
            return [(int(scores.argmax()), float(scores.max())) for scores in output.logits]
        image = torch.frombuffer(bytearray(request), dtype=torch.uint8).reshape(1, 3, IMAGE_SIDE, IMAGE_SIDE)
        inputs = new_inputs(tuple(image.shape), torch.float32).copy_(image).div_(128).sub_(1)
        scores, classes = model(inputs)[0].topk(5)
        return list(zip(classes.tolist(), scores.tolist()))


def is_same(answers, others):
    return len(answers) == len(others) and all(
        one[0] == other[0] and math.isclose(one[1], other[1], rel_tol=1e-3) for one, other in zip(answers, others))


# --- the files of the weights ---


def prepare(name, folder, device, connection):
    """In a process of its own, once: writes the files, and answers with the bytes of the weights."""
    import_packages(name, "safetensors.torch")
    import safetensors.torch
    import torch

    tensors = tensors_of(make_model(name, device))
    safetensors.torch.save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / "weights.safetensors")
    torch.save(tensors, folder / "weights.pt")
    connection.send(sum(tensor.nbytes for tensor in tensors.values()))


# --- the worker ---


def work(way, name, device, source, connection):
    """A worker: answers requests until None comes. source: the path of a file, and the name of the weights in the pool."""
    times = [now()]
    try:
        serve(way, name, device, source, connection, times)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        sys.exit(1)  # the supervisor has ended


def serve(way, name, device, source, connection, times):
    import_packages(name, "gpupool.torch" if way == "gpupool" else "safetensors.torch")
    import torch
    if name in LLAMAS:
        from transformers import LlamaForCausalLM  # noqa: F401: the package imports it when it is asked for
    times.append(now())
    path, weights_name = source
    own_memory = contextlib.nullcontext()
    if way == "gpupool":
        import gpupool.torch

        from common import Place
        place = Place()
        if place.is_real:
            own_memory = gpupool.torch.use_pool()  # what this worker computes lies in the pool too
    if device != "cpu":
        torch.zeros(1, device=device)
        torch.cuda.synchronize()
    times.append(now())
    model = make_model(name, "meta")
    times.append(now())
    if way == "gpupool":
        assign(model, gpupool.torch.load(path, name=weights_name, pool=place.gpu))
    elif way == "safetensors":
        import safetensors.torch
        assign(model, safetensors.torch.load_file(path, device=device))
    else:
        assign(model, torch.load(path, mmap=True, map_location=device, weights_only=True))
    if device != "cpu":
        torch.cuda.synchronize()
    times.append(now())

    def new_inputs(shape, dtype):
        if way == "gpupool":
            return gpupool.torch.empty(shape, dtype=dtype, pool=place.gpu)
        return torch.empty(shape, dtype=dtype, device=device)

    with own_memory:
        while (request := connection.recv()) is not None:
            connection.send(("begun", times))
            connection.send(("answer", answer(model, name, request, new_inputs)))


# --- the supervisor ---


class Weights:
    """A file, and for the way gpupool the name under which its tensors lie in the pool. The pool keeps them, also when this process is
    killed, until forget()."""

    def __init__(self, path, name=None):
        self.path, self.name = path, name

    def source(self):
        return self.path, self.name

    def held_bytes(self):
        """Bytes of the pool that hold the weights."""
        from gpupool import names
        return sum(one.bytes for one in names.names() if one.name == self.name)

    def forget(self):
        from gpupool import NoNameError, names
        if self.name is not None:
            with contextlib.suppress(NoNameError):  # no worker has loaded them
                names.unpublish(self.name)


class Worker:
    def __init__(self, context, way, model, device, source):
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(way, model, device, source, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def receive(self):
        """The next message, or None if the worker has ended."""
        ready = multiprocessing.connection.wait([self.connection, self.process.sentinel], WAIT_S)
        if not ready:
            self.process.kill()
            return None
        if self.connection in ready:
            with contextlib.suppress(EOFError, OSError):
                return self.connection.recv()
        return None

    def end(self):
        with contextlib.suppress(OSError):
            self.connection.send(None)
        self.process.join(WAIT_S)
        self.reap()

    def reap(self):
        """The process has ended, or does no more. Messages that it left unread are dropped, and its request is sent again."""
        self.process.kill()
        self.process.join()
        self.connection.close()


class Supervisor:
    """Has a worker answer requests. A request whose worker dies goes to the next one, so a worker may begin a request twice, and each
    request is answered once."""

    def __init__(self, context, way, model, device, weights):
        self.context, self.way, self.model, self.device, self.weights = context, way, model, device, weights
        self.worker, self.restarts = None, 0
        self.start()

    def start(self):
        self.worker = Worker(self.context, self.way, self.model, self.device, self.weights.source())

    def ask(self, request, begun=lambda worker: None):
        """Returns (answer, times of the worker's start). begun(worker) is called when a worker has begun with it."""
        for _ in range(STARTS):
            with contextlib.suppress(OSError):
                self.worker.connection.send(request)
            times = None
            while (message := self.worker.receive()) is not None:
                what, value = message
                if what == "answer":
                    return value, times
                times = value
                begun(self.worker)
            self.worker.reap()
            code = self.worker.process.exitcode
            self.restarts += 1
            self.start()
        fail(f"{self.way}: {STARTS} workers in a row ended before they answered a request, the last one with exit code {code}")

    def end(self):
        self.worker.end()
        self.weights.forget()


def result_of(context, function, *arguments):
    """Runs a function in a process of its own, which sends one object."""
    ours, theirs = context.Pipe()
    process = context.Process(target=function, args=(*arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(WAIT_S):
            fail(f"{function.__name__}() did not end in {WAIT_S} s")
        result = ours.recv()
    except EOFError:
        process.join(WAIT_S)
        fail(f"{function.__name__}() failed, with exit code {process.exitcode}")
    process.join(WAIT_S)
    if process.exitcode != 0:
        fail(f"{function.__name__}() ended with exit code {process.exitcode}")
    return result


# --- the measurement ---


class Kill:
    """Kills the first worker that has begun with the request, and notes when."""

    def __init__(self):
        self.at = None

    def __call__(self, worker):
        if self.at is None:
            self.at = now()
            worker.process.kill()


def ask_and_kill(supervisor, request):
    """Kills a worker in its request. Returns the answer, the times of the next worker's start, when the one was killed, and when the
    answer was there."""
    for _ in range(10):
        kill, before = Kill(), supervisor.restarts
        answers, times = supervisor.ask(request, kill)
        there = now()
        if supervisor.restarts > before:
            return answers, times, kill.at, there
        supervisor.ask(request)  # the worker was quicker than its killer; there is a new one now
    fail(f"{supervisor.way}: ten workers in a row answered before they were killed")


def measure(supervisors, model, rounds):
    """Rounds of all ways, in turns: kills, and times of the parts until the answer. Returns those, and the seconds in which the first worker
    of each way had its weights."""
    expected, first = {}, {}
    for seed in range(rounds + 1):
        for way, supervisor in supervisors.items():
            answers, times = supervisor.ask(make_request(model, seed))
            first.setdefault(way, times[4] - times[3])
            if not is_same(answers, expected.setdefault(seed, answers)):
                fail(f"{way} answers {answers}, and {next(iter(supervisors))} {expected[seed]}")
    figures = {way: {part: [] for part in (*PARTS, "whole")} for way in supervisors}
    for seed in range(rounds + 1):
        for way, supervisor in supervisors.items():
            answers, times, killed_at, there = ask_and_kill(supervisor, make_request(model, seed))
            if not is_same(answers, expected[seed]):
                fail(f"{way} answers {answers} after a restart, and {expected[seed]} before")
            if seed == 0:  # not counted
                continue
            stamps = [killed_at, *times, there]
            for part, begin, end in zip(PARTS, stamps, stamps[1:]):
                figures[way][part].append(end - begin)
            figures[way]["whole"].append(there - killed_at)
    return figures, first


def kill_and_wait_for_memory(supervisor, place, model, held):
    """Kills the worker in a request; returns the bytes that it had besides the weights, and the seconds until the pools had them."""
    def leased():
        return sum(pool.info().leased_bytes + pool.info().quarantined_bytes for pool in (place.gpu, place.host))

    own, at = 0, None

    def begun(worker):
        nonlocal own, at
        own, at = leased() - held, now()
        worker.process.kill()
        worker.process.join()
        while leased() != held:
            if now() - at > BACK_S:
                fail(f"the pools have lent {leased()} bytes {BACK_S} s after the worker's death, and the weights are {held}. Does another "
                     "program use the daemon?")
            time.sleep(0.001)
        raise _Over

    supervisor.ask(make_request(model, 0))  # so that it has memory of its own
    with contextlib.suppress(_Over):
        supervisor.ask(make_request(model, 0), begun)
    took = now() - at
    supervisor.worker.reap()
    supervisor.start()
    return own, took


class _Over(Exception):
    """The request is given up."""


def run_model(name, options, place):
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="gpupool-restart-", dir=options.folder) as folder:
        folder = pathlib.Path(folder)
        n_bytes = result_of(context, prepare, name, folder, str(place.device))
        supervisors = {}
        try:
            for way in options.ways:
                weights = Weights(folder / ("weights.pt" if way == "torch" else "weights.safetensors"), NAME + name if way == "gpupool" else None)
                supervisors[way] = Supervisor(context, way, name, str(place.device), weights)
            figures, first = measure(supervisors, name, options.rounds)
            back = None
            if "gpupool" in supervisors:
                held = supervisors["gpupool"].weights.held_bytes()
                print(f"{name}: {held} bytes of the pool hold the weights, which the first worker read in {first['gpupool']:.2f} s", flush=True)
                own, took = kill_and_wait_for_memory(supervisors["gpupool"], place, name, held)
                back = {"own_bytes": own, "seconds": took}
        finally:
            for supervisor in supervisors.values():
                supervisor.end()
    report(name, n_bytes, figures, options, place)
    if back:
        print(f"\nA worker that was killed with {back['own_bytes']} bytes of its own, besides the weights: the pools had them again after "
              f"{back['seconds'] * 1e3:.0f} ms.", flush=True)
    return {"weights_bytes": n_bytes, "figures": figures, "first_weights_s": first, "back": back}


def report(name, n_bytes, figures, options, place):
    base = median(figures[options.ways[0]]["whole"])
    table(f"From the kill of a worker to the answer to its request, {name} ({n_bytes / 1e6:.0f} MB), {place.name()}: medians of "
          f"{options.rounds} kills, in seconds", "way", [*PARTS, "the whole", f"whole / {options.ways[0]}'s"],
          [[way, *(median(of_way[part]) for part in (*PARTS, "whole")), median(of_way["whole"]) / base] for way, of_way in figures.items()])


def main():
    parser = parser_of(__doc__, WAYS)
    parser.add_argument("--models", default="llama,resnet50", help="separated by commas: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="kills in each way, after one that is not counted: %(default)s")
    parser.add_argument("--folder", metavar="PATH", help="where files of weights are made for the time of the run; default: that of temporary files")
    options = parse(parser, WAYS)
    if options.rounds < 1:
        parser.error("--rounds is at least 1")
    place = connect(options.simulate)
    models = options.models.split(",")
    for name in models:
        import_packages(name, "safetensors.torch")
        if name not in LLAMAS:
            import torchvision
            if name not in torchvision.models.list_models(module=torchvision.models):
                fail(f"there is no model {name}: choose from {', '.join(LLAMAS)} and the classifiers of torchvision")
    figures = {name: run_model(name, options, place) for name in models}
    write_json(options.json, {"device": place.name(), "models": figures})


if __name__ == "__main__":
    main()
