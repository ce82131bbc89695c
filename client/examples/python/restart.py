#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An inference worker is killed and restarted: how long until it answers again, with its weights in a file or in a pool.

A supervisor gives requests to a worker. When the worker dies, the supervisor starts another one and sends the request again that was
under way. The program kills the worker (SIGKILL) while it works on a request, and measures until that request is answered, by parts.
It does so in turns for each way in which the worker gets its weights:

  gpupool       they lie in GPU memory of the pool. A token, which the supervisor has, holds them while no worker runs; the new worker
                attaches, and copies nothing
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
ALIGNMENT = 512  # of each tensor in the buffer, as PyTorch's allocator aligns
TAKERS = 1 << 20  # workers that may attach by one token
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


# --- the weights: files, and the buffer in a pool ---


def prepare(name, folder, device, connection):
    """In a process of its own, once: writes the files, and answers with the bytes of the weights."""
    import_packages(name, "safetensors.torch")
    import safetensors.torch
    import torch

    tensors = tensors_of(make_model(name, device))
    safetensors.torch.save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / "weights.safetensors")
    torch.save(tensors, folder / "weights.pt")
    connection.send(sum(tensor.nbytes for tensor in tensors.values()))


def load_into_pool(path, lifetime, connection):
    """In a process of its own, once: reads a file into a buffer of the pool, and answers with a token that holds it, the place of
    each tensor, and the bytes that are held. The process may end then."""
    import safetensors
    import torch

    import gpupool.torch
    from common import Place

    place = Place()
    with safetensors.safe_open(path, "pt") as file:
        layout, n_bytes = {}, 0
        for name in file.keys():  # noqa: SIM118: it is no dictionary
            tensor = file.get_tensor(name)
            layout[name] = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), n_bytes
            n_bytes += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        stream = torch.cuda.current_stream() if place.is_real else None
        buffer = place.gpu.acquire(n_bytes, stream)
        for name, tensor in weights_in(buffer, layout).items():
            tensor.copy_(file.get_tensor(name))
    place.synchronize()
    connection.send((buffer.send(stream, takers=TAKERS, lifetime=lifetime), layout, buffer.capacity))


def weights_in(buffer, layout):
    import torch

    import gpupool.torch
    return {name: gpupool.torch.from_buffer(buffer, shape, getattr(torch, dtype), offset) for name, (shape, dtype, offset) in layout.items()}


# --- the worker ---


def work(way, name, device, source, connection):
    """A worker: answers requests until None comes. source: the path of a file, or a token and the places of the tensors."""
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
    stream, own_memory, buffer = None, contextlib.nullcontext(), None
    if way == "gpupool":
        import gpupool.torch

        from common import Place
        place = Place()
        if place.is_real:
            own_memory = gpupool.torch.use_pool()  # what this worker computes lies in the pool too
    if device != "cpu":
        torch.zeros(1, device=device)
        torch.cuda.synchronize()
        stream = torch.cuda.current_stream()
    times.append(now())
    model = make_model(name, "meta")
    times.append(now())
    if way == "gpupool":
        buffer = gpupool.attach(source[0], stream)
        assign(model, weights_in(buffer, source[1]))
    elif way == "safetensors":
        import safetensors.torch
        assign(model, safetensors.torch.load_file(source, device=device))
    else:
        assign(model, torch.load(source, mmap=True, map_location=device, weights_only=True))
    if stream:
        torch.cuda.synchronize()
    times.append(now())

    def new_inputs(shape, dtype):
        if way == "gpupool":
            return gpupool.torch.empty(shape, dtype=dtype, pool=place.gpu)
        return torch.empty(shape, dtype=dtype, device=device)

    with own_memory:
        while (message := connection.recv()) is not None:
            what, argument = message
            if what == "renew":
                connection.send(("token", buffer.send(stream, takers=TAKERS, lifetime=argument)))
                continue
            connection.send(("begun", times))
            connection.send(("answer", answer(model, name, argument, new_inputs)))


# --- the supervisor ---


class PoolWeights:
    """A token that holds the weights. It ends after its lifetime, so that nothing is held for good if the supervisor is killed. The
    supervisor has a worker make a new one after a request, when half of the time is over. So requests have to come more often than
    that; otherwise the weights are gone when a worker dies later."""

    def __init__(self, context, path, lifetime):
        self.lifetime = lifetime
        began = now()
        self.token, self.layout, self.held_bytes = result_of(context, load_into_pool, path, lifetime)
        self.sent, self.load_s = now(), now() - began

    def source(self):
        return self.token, self.layout

    def renew(self, worker):
        """Called when the worker is idle."""
        if now() - self.sent < self.lifetime / 2:
            return
        sent = now()
        worker.connection.send(("renew", self.lifetime))
        token = worker.receive()
        if token is not None:  # else the worker has ended, and the next one is asked
            self.revoke()
            self.token, self.sent = token[1], sent

    def revoke(self):
        import gpupool
        with contextlib.suppress(gpupool.NoTokenError):  # its time was up
            gpupool.revoke(self.token)


class FileWeights:
    def __init__(self, path):
        self.path = path

    def source(self):
        return self.path

    def renew(self, worker):
        pass

    def revoke(self):
        pass


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
                self.worker.connection.send(("ask", request))
            times = None
            while (message := self.worker.receive()) is not None:
                what, value = message
                if what == "answer":
                    self.weights.renew(self.worker)
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
        self.weights.revoke()


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
    """Rounds of all ways, in turns: kills, and times of the parts until the answer."""
    expected = {}
    for seed in range(rounds + 1):
        for way, supervisor in supervisors.items():
            answers = supervisor.ask(make_request(model, seed))[0]
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
    return figures


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
        weights, held, supervisors = {}, 0, {}
        for way in options.ways:
            if way == "gpupool":
                weights[way] = PoolWeights(context, folder / "weights.safetensors", options.lifetime)
                held = weights[way].held_bytes
                print(f"{name}: {held} bytes of the pool hold the weights, which were read once in {weights[way].load_s:.2f} s, with the start of "
                      "the process that did", flush=True)
            else:
                weights[way] = FileWeights(folder / ("weights.pt" if way == "torch" else "weights.safetensors"))
        try:
            for way in options.ways:
                supervisors[way] = Supervisor(context, way, name, str(place.device), weights[way])
            figures = measure(supervisors, name, options.rounds)
            back = None
            if "gpupool" in supervisors:
                own, took = kill_and_wait_for_memory(supervisors["gpupool"], place, name, held)
                back = {"own_bytes": own, "seconds": took}
        finally:
            for supervisor in supervisors.values():
                supervisor.end()
            for one in weights.values():
                one.revoke()
    report(name, n_bytes, figures, options, place)
    if back:
        print(f"\nA worker that was killed with {back['own_bytes']} bytes of its own, besides the weights: the pools had them again after "
              f"{back['seconds'] * 1e3:.0f} ms.", flush=True)
    return {"weights_bytes": n_bytes, "figures": figures, "back": back}


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
    parser.add_argument("--lifetime", type=float, default=3600,
                        help="seconds after which a token ends that holds the weights, if the supervisor does not have it renewed: %(default)s")
    options = parse(parser, WAYS)
    if options.rounds < 1 or not 0 < options.lifetime <= 86400:
        parser.error("--rounds is at least 1, and --lifetime at most a day")
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
