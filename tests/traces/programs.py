# SPDX-License-Identifier: Apache-2.0
"""The programs that record.py records. Each is called with PyTorch and a random number generator, works until its Budget
is used up, and returns how far it came. The first part of its doc string stands in the trace.

Imports of PyTorch are inside functions: record.py lists the programs where there is none."""
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))

DEVICE = "cuda"
SECONDS_MAX = 20  # a program's loop ends then
ALLOCATIONS_MAX = 45_000  # or after so many allocations, so that a trace stays small


class Budget:
    """Says when a program has shown enough."""

    def __init__(self, torch, allocations_max=ALLOCATIONS_MAX):
        self.torch = torch
        self.allocations_max = allocations_max
        self.end = time.monotonic() + SECONDS_MAX

    def left(self):
        allocations = self.torch.cuda.memory_stats().get("allocation.all.allocated", 0)
        return time.monotonic() < self.end and allocations < self.allocations_max


# --- the transformer ---


def transformer_train(torch, rng):
    """A decoder of 12 layers in training: AdamW, bfloat16 autocast, batch 2 to 12, 64 to 1024 tokens, gradient
    clipping, an evaluation every 8 steps."""
    from models.decoder import Decoder
    functional = torch.nn.functional
    model = Decoder().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    budget, steps = Budget(torch), 0

    def loss_of(batch, length):
        tokens = torch.randint(model.vocabulary, (batch, length + 1), device=DEVICE)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            logits = model(tokens[:, :-1])
            return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    while budget.left():
        loss = loss_of(rng.randint(2, 12), rng.randint(64, 1024))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        steps += 1
        if steps % 8 == 0:
            model.eval()
            with torch.no_grad():
                loss_of(16, 1024).item()
            model.train()
    return f"{steps} steps"


def transformer_infer(torch, rng):
    """The decoder of decoder() generating in half precision: up to 8 requests at a time, each with a batch of 1 to 8, a prompt
    of 16 to 1500 tokens and a cache of keys and values that grows with each token and goes when the request ends."""
    from models.decoder import Decoder
    model = Decoder().half().to(DEVICE).eval()
    budget, running, done = Budget(torch), [], 0

    @torch.no_grad()
    def advance(request):
        logits = model(request["tokens"], request["caches"], request["offset"])
        request["offset"] += request["tokens"].shape[1]
        request["tokens"] = logits[:, -1].argmax(dim=-1, keepdim=True)
        request["left"] -= 1

    while budget.left():
        if len(running) < 8 and (not running or rng.random() < 0.4):
            tokens = torch.randint(model.vocabulary, (rng.randint(1, 8), rng.randint(16, 1500)), device=DEVICE)
            running.append({"tokens": tokens, "caches": [{} for _ in range(model.layers)], "offset": 0,
                            "left": rng.randint(4, 60)})
        for request in running:
            advance(request)
        done += sum(request["left"] <= 0 for request in running)
        running = [request for request in running if request["left"] > 0]
    return f"{done} requests"


# --- the convolutional net ---


def convnet_train(torch, rng):
    """ResNet-50 in training: AdamW, single precision, batch 8 to 40, images of 128 to 256 pixels; the next batch is
    copied from pinned memory on a stream of its own."""
    from models.resnet import resnet50
    functional = torch.nn.functional
    model = resnet50().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    copies = torch.cuda.Stream()
    budget, steps = Budget(torch), 0

    def fetch():
        batch, pixels = rng.randint(8, 40), rng.randrange(128, 257, 32)
        images = torch.rand(batch, 3, pixels, pixels)
        labels = torch.randint(1000, (batch,))
        try:
            images, labels = images.pin_memory(), labels.pin_memory()
        except RuntimeError:
            pass  # pageable then: the allocations on the GPU are the same
        with torch.cuda.stream(copies):
            return images.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True)

    following = fetch()
    while budget.left():
        torch.cuda.current_stream().wait_stream(copies)
        images, labels = following
        images.record_stream(torch.cuda.current_stream())
        labels.record_stream(torch.cuda.current_stream())
        following = fetch()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        steps += 1
        if steps % 10 == 0:
            loss.item()
    return f"{steps} steps"


def convnet_infer(torch, rng):
    """ResNet-50 classifying in half precision: batches of 1 to 64 images of 96 to 384 pixels, as requests come."""
    from models.resnet import resnet50
    model = resnet50().half().to(DEVICE).eval()
    budget, steps = Budget(torch), 0

    with torch.no_grad():
        while budget.left():
            pixels = rng.randrange(96, 385, 16)
            images = torch.rand(rng.randint(1, 64), 3, pixels, pixels, dtype=torch.float16, device=DEVICE)
            model(images).softmax(dim=1).topk(5)
            steps += 1
            if steps % 10 == 0:
                torch.cuda.synchronize()
    return f"{steps} batches"


# --- serving ---

PAGE_TOKENS = 64
PROMPT_CHUNK_TOKENS = 1024


class Sequence:
    """A request to the server: its tokens, and the pages that hold keys and values of all layers."""

    def __init__(self, rng):
        self.waiting = rng.choice([rng.randint(8, 200), rng.randint(100, 3000)])  # of the prompt
        self.left = rng.randint(8, 100)
        self.length = 0
        self.pages = []
        self.token = None


def attend_to_pages(torch, model, batch):
    """Attention for a step of sequences, whose tokens lie one behind the other: (sequence, new tokens) each."""
    functional = torch.nn.functional
    alone = [i for i, (_, tokens) in enumerate(batch) if tokens == 1]
    ends, offset = [], 0
    for _, tokens in batch:
        ends.append((offset, offset + tokens))
        offset += tokens
    depth = max((len(batch[i][0].pages) for i in alone), default=0)
    lengths = torch.tensor([batch[i][0].length for i in alone], device=DEVICE)
    mask = (torch.arange(depth * PAGE_TOKENS, device=DEVICE) < lengths[:, None])[:, None, None]
    rows = torch.tensor([ends[i][0] for i in alone], device=DEVICE)

    def attend(layer, q, k, v):
        new = torch.stack([k, v], dim=1)  # tokens, 2, heads, head width
        for (sequence, tokens), (begin, end) in zip(batch, ends):
            place = sequence.length - tokens
            while begin < end:
                count = min(end - begin, PAGE_TOKENS - place % PAGE_TOKENS)
                page = sequence.pages[place // PAGE_TOKENS]
                page[layer, place % PAGE_TOKENS:place % PAGE_TOKENS + count] = new[begin:begin + count]
                begin, place = begin + count, place + count
        y = torch.empty_like(q)
        if alone:  # one gathering for all that have a token each, as long as the longest
            tables = [page[layer] for i in alone for page in
                      (batch[i][0].pages + batch[i][0].pages[-1:] * depth)[:depth]]
            pages = torch.stack(tables).view(len(alone), depth * PAGE_TOKENS, 2, model.kv_heads, model.head_width)
            keys, values = pages.permute(2, 0, 3, 1, 4)
            y[rows] = functional.scaled_dot_product_attention(
                q[rows].unsqueeze(2), keys, values, attn_mask=mask, enable_gqa=True).squeeze(2)
        for (sequence, tokens), (begin, end) in zip(batch, ends):
            if tokens > 1:
                pages = torch.cat([page[layer] for page in sequence.pages])[:sequence.length]
                keys, values = pages.permute(1, 2, 0, 3).unsqueeze(1)
                seen = torch.ones(tokens, sequence.length, dtype=torch.bool, device=DEVICE)
                y[begin:end] = functional.scaled_dot_product_attention(
                    q[begin:end].transpose(0, 1)[None], keys, values,
                    attn_mask=seen.tril(sequence.length - tokens), enable_gqa=True)[0].transpose(0, 1)
        return y

    return attend


def serving(torch, rng):
    """A server of a decoder (6 layers, grouped-query attention) with continuous batching: up to 40 sequences, each step a
    token of each and up to 1024 tokens of a new prompt; keys and values in pages of 64 tokens, made as a sequence grows;
    sampling among the likeliest tokens; the youngest sequence is begun anew when pages are short."""
    from models.llama import Llama
    model = Llama(layers=6, width=1536, heads=24, kv_heads=8, hidden=4096).bfloat16().to(DEVICE).eval()
    budget, running, steps, done, preempted, pages_max = Budget(torch), [], 0, 0, 0, 500

    def extend(sequence, tokens):
        sequence.length += tokens
        while len(sequence.pages) * PAGE_TOKENS < sequence.length:
            sequence.pages.append(torch.zeros(len(model.layers), PAGE_TOKENS, 2, model.kv_heads, model.head_width,
                                              dtype=torch.bfloat16, device=DEVICE))

    def next_tokens(logits):
        likeliest, index = (logits.float() / 0.8).topk(50, dim=-1)
        ordered = likeliest.softmax(dim=-1)
        ordered = ordered.masked_fill(ordered.cumsum(dim=-1) - ordered > 0.95, 0.0)
        return index.gather(1, torch.multinomial(ordered, 1)).squeeze(1)

    with torch.no_grad():
        while budget.left():
            if len(running) < 40 and rng.random() < 0.5:
                running.append(Sequence(rng))
            while len(running) > 1 and sum(len(sequence.pages) for sequence in running) > pages_max:
                again = running.pop()
                again.waiting, again.length, again.pages = again.waiting + again.length, 0, []
                running.insert(0, again)
                preempted += 1
            batch, chunk = [], PROMPT_CHUNK_TOKENS
            for sequence in running:
                tokens = min(sequence.waiting, chunk) if sequence.waiting else 1
                if tokens:
                    chunk -= tokens if sequence.waiting else 0
                    batch.append((sequence, tokens))
                    extend(sequence, tokens)
            if not batch:
                continue
            tokens = torch.cat([sequence.token if sequence.token is not None and count == 1
                                else torch.randint(model.vocabulary, (count,), device=DEVICE)
                                for sequence, count in batch])
            positions = torch.cat([torch.arange(sequence.length - count, sequence.length, device=DEVICE)
                                   for sequence, count in batch])
            last = torch.tensor([count for _, count in batch], device=DEVICE).cumsum(0) - 1
            chosen = next_tokens(model(tokens, positions, attend_to_pages(torch, model, batch), last))
            for (sequence, count), token in zip(batch, chosen.split(1)):
                if sequence.waiting:
                    sequence.waiting -= count
                if not sequence.waiting:
                    sequence.token = token.clone()
                    sequence.left -= 1
            chosen.tolist()  # to the clients
            done += sum(sequence.left <= 0 for sequence in running)
            running = [sequence for sequence in running if sequence.left > 0]
            steps += 1
    return f"{steps} steps, {done} sequences, {preempted} begun anew"


# --- diffusion ---


def diffusion(torch, rng):
    """A diffusion model's UNet (345 M parameters) in half precision, with guidance: pictures of 256 to 1024 pixels a side,
    1 to 6 at a time, contexts of 20 to 77 tokens, 2 to 6 steps each."""
    from models import unet
    model = unet.UNet().half().to(DEVICE).eval()
    budget, pictures = Budget(torch), 0
    with torch.no_grad():
        while budget.left():
            height, width = (rng.randrange(32, 129, 8) for _ in range(2))
            batch = rng.randint(1, 6)
            latents = torch.randn(batch, 4, height, width, dtype=torch.float16, device=DEVICE)
            context = torch.randn(batch, rng.randint(20, 77), 768, dtype=torch.float16, device=DEVICE)
            steps = rng.randint(2, 6)
            for step in range(steps):
                latents = unet.denoise(model, latents, context, 1 - step / steps, 1 - (step + 1) / steps)
            pictures += batch
            latents.float().clamp(-1, 1).cpu()
    return f"{pictures} pictures"


# --- speech ---


def speech_train(torch, rng):
    """A conformer (57 M parameters) in training on utterances of 1 to 30 s: batches of up to 160 s in all, each as long as
    its longest; bfloat16 autocast, CTC loss, AdamW, gradients of two batches accumulated."""
    from models.conformer import SAMPLES_PER_SECOND, Conformer
    functional = torch.nn.functional
    model = Conformer().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    budget, steps = Budget(torch), 0

    def fetch():
        """Utterances of about the same length, as a sampler with buckets picks them."""
        longest = rng.uniform(1, 30)
        count = max(1, min(32, int(160 / longest)))
        samples = [int(SAMPLES_PER_SECOND * max(1.0, rng.uniform(0.7, 1.0) * longest)) for _ in range(count)]
        waves = torch.zeros(count, max(samples))
        for wave, length in zip(waves, samples):
            wave[:length] = 0.1 * torch.randn(length)
        return waves.to(DEVICE), torch.tensor(samples, device=DEVICE), samples

    while budget.left():
        for _ in range(2):
            waves, samples, lengths = fetch()
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                logits, frames = model(waves, samples)
            symbols = [max(1, length // SAMPLES_PER_SECOND * 3) for length in lengths]
            targets = torch.randint(1, model.symbols, (sum(symbols),), device=DEVICE)
            loss = functional.ctc_loss(logits.float().log_softmax(-1).transpose(0, 1), targets, frames,
                                       torch.tensor(symbols, device=DEVICE), zero_infinity=True)
            (loss / 2).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        steps += 1
        if steps % 5 == 0:
            loss.item()
    return f"{steps} steps"


# --- many small tensors ---


def small_tensors(torch, rng):
    """Many small tensors: a net over batches of 8 to 128 graphs of 5 to 60 nodes in training, and a population of 300 small
    networks (2 to 6 layers, 16 to 160 wide) of which 6 are trained at a time, each by an Adam of its own, and 3 replaced."""
    from models import graphs
    functional = torch.nn.functional
    model = graphs.GraphNet().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    budget, steps = Budget(torch), 0
    table = torch.randn(20_000, 40, device=DEVICE)

    def member():
        network = graphs.small_network(40, rng.randint(16, 160), rng.randint(2, 6)).to(DEVICE)
        return network, torch.optim.Adam(network.parameters(), lr=1e-3, foreach=False)

    population = [member() for _ in range(300)]
    while budget.left():
        batch = graphs.random_graphs(rng, DEVICE, model.kinds, rng.randint(8, 128))
        found = model(*batch)
        functional.smooth_l1_loss(found, torch.randn_like(found)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        for network, own in rng.sample(population, 6):
            rows = table[torch.randint(len(table), (rng.randint(16, 2048),), device=DEVICE)]
            functional.mse_loss(network(rows).squeeze(1), rows[:, 0].sin()).backward()
            own.step()
            own.zero_grad(set_to_none=True)
        for _ in range(3):
            population[rng.randrange(len(population))] = member()
        steps += 1
        if steps % 5 == 0:
            found.mean().item()
    return f"{steps} steps"


PROGRAMS = {function.__name__: function for function in
            (transformer_train, transformer_infer, convnet_train, convnet_infer, serving, diffusion, speech_train, small_tensors)}
