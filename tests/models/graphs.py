# SPDX-License-Identifier: Apache-2.0
"""Message passing over graphs of ragged sizes, as for molecules; many small tensors."""
import torch
from torch import nn


class Message(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(2 * width + 16, width), nn.SiLU(), nn.Linear(width, width))
        self.gate = nn.Linear(width, 1)
        self.update = nn.GRUCell(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, nodes, source, target, distances):
        messages = self.edge(torch.cat([nodes[source], nodes[target], distances], dim=1))
        messages = messages * self.gate(messages).sigmoid()
        sums = torch.zeros_like(nodes).index_add(0, target, messages)
        return self.norm(self.update(sums, nodes))


class GraphNet(nn.Module):
    def __init__(self, layers=6, width=96, kinds=32):
        super().__init__()
        self.kinds = kinds
        self.embedding = nn.Embedding(kinds, width)
        self.layers = nn.ModuleList(Message(width) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, kinds, source, target, graph_of, graphs, places):
        distances = (places[source] - places[target]).norm(dim=1, keepdim=True)
        distances = torch.exp(-(distances - torch.linspace(0, 5, 16, device=places.device)).square())
        nodes = self.embedding(kinds)
        for layer in self.layers:
            nodes = layer(nodes, source, target, distances)
        sums = torch.zeros(graphs, nodes.shape[1], device=nodes.device).index_add(0, graph_of, nodes)
        return self.head(sums)


def small_network(inputs, width, depth):
    """A member of an ensemble."""
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(inputs, width), nn.LayerNorm(width), nn.GELU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, 1))


def random_graphs(rng, device, kinds, count):
    """A batch of graphs of 5 to 60 nodes: the arguments of GraphNet.forward()."""
    source, target, graph_of, first = [], [], [], 0
    for graph in range(count):
        nodes = rng.randint(5, 60)
        for node in range(1, nodes):  # a tree, and some edges more
            for other in {rng.randrange(node) for _ in range(rng.randint(1, 3))}:
                source += [first + node, first + other]
                target += [first + other, first + node]
        graph_of += [graph] * nodes
        first += nodes
    source, target, graph_of = (torch.tensor(values, device=device) for values in (source, target, graph_of))
    return (torch.randint(kinds, (first,), device=device), source, target, graph_of, count,
            torch.rand(first, 3, device=device) * 5)
