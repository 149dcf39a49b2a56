"""Weight sharing: codebooks against scikit-learn's k-means, gradients summed over what shares an entry."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gpulab import compression, networks
from gpulab.compression import _share
from gpulab.errors import InputError


def spread(values: torch.Tensor, book: torch.Tensor, nearest: torch.Tensor) -> float:
    """The sum of squared distances, in float64."""
    return float((values.double() - book.double()[nearest]).square().sum())


@pytest.mark.parametrize("clusters", [2, 5, 16])
def test_codebook_is_as_good_as_scikit_learns(clusters: int):
    """From the same start, the squared error is that of scikit-learn's Lloyd iterations."""
    cluster = pytest.importorskip("sklearn.cluster")
    values = torch.randn(400, generator=torch.Generator().manual_seed(clusters))
    book, nearest = _share.k_means(values, clusters)
    start = torch.linspace(0, 1, clusters) * (values.max() - values.min()) + values.min()
    theirs = cluster.KMeans(clusters, init=start.numpy()[:, None], n_init=1, max_iter=200, tol=0).fit(values.numpy()[:, None])
    assert spread(values, book, nearest) == pytest.approx(theirs.inertia_, rel=1e-4)
    distances = (values[:, None] - book[None]).abs()
    assert torch.equal(distances.gather(1, nearest[:, None])[:, 0], distances.min(1).values)


def test_an_entry_that_nothing_is_near_stays_where_it_was():
    """By hand: the values 0, 1, 9, 10 start four entries at 0, 10/3, 20/3, 10; the middle two get nothing, and none may move to 0."""
    values = torch.tensor([0.0, 1.0, 9.0, 10.0, 0.0, 10.0, 0.5])
    book, nearest = _share.k_means(values, 4)
    assert book.tolist() == pytest.approx([1.5 / 4, 10 / 3, 20 / 3, 29 / 3])
    assert nearest.tolist() == [0, 0, 3, 3, 0, 3, 0]


def test_few_values_are_kept_exactly():
    """A weight with no more values than clusters is its own codebook."""
    values = torch.tensor([0.5, -1.0, 0.5, 2.0])
    book, nearest = _share.k_means(values, 8)
    assert book.tolist() == [-1.0, 0.5, 2.0]
    assert torch.equal(book[nearest], values)
    book, nearest = _share.k_means(torch.tensor([9.0, 0.0, 10.0, 1.0, 9.0]), 4)  # as many as clusters
    assert (book.tolist(), nearest.tolist()) == ([0.0, 1.0, 9.0, 10.0], [2, 0, 3, 1, 2])


def test_a_shared_value_gets_the_sum_of_its_gradients():
    """The gradient of an entry is the sum over the weights that hold it: what a convolution does with its positions."""
    torch.manual_seed(0)
    layer = nn.Linear(6, 4, bias=False)
    shared = compression.share_weights(nn.Sequential(layer), 3)
    plain = nn.Sequential(nn.Linear(6, 4, bias=False))
    with torch.no_grad():
        plain[0].weight[:] = shared[0].weight
    x = torch.randn(5, 6)
    for model in (shared, plain):
        model(x).square().sum().backward()
    held = shared[0].parametrizations.weight
    sums = torch.zeros(3).index_add_(0, held[0].indices.flatten(), plain[0].weight.grad.flatten())
    torch.testing.assert_close(held.original.grad, sums)


def test_training_moves_the_codebook_and_keeps_the_sharing():
    """After a step the layer still has as few values, others than before, and its zeros."""
    torch.manual_seed(0)
    model = compression.share_weights(compression.prune(networks.mlp(8, 16, 4, depth=1), 0.5), 4)
    before = model.layers[1].weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.randn(9, 8)).square().sum().backward()
    optimizer.step()
    after = model.layers[1].weight.detach()
    assert len(after[after != 0].unique()) <= 4
    assert bool((after[before == 0] == 0).all())
    assert not torch.equal(before, after)
    assert compression.sparsity(model) == pytest.approx(0.5, abs=0.01)


def test_tied_embeddings_are_left_alone_and_stay_tied():
    """The head of a language model that shares its weight with the embedding is shared already: it is not touched."""
    model = networks.transformer(20, 16, 2, 1, context=8, tied=True)
    shared = compression.share_weights(model, 4)
    assert shared.head.weight is shared.tokens.weight
    assert torch.equal(shared.head.weight, model.head.weight)


@pytest.mark.parametrize("clusters", [1, 257, 2.0, True])
def test_clusters_are_checked(clusters: object):
    """A codebook has 2 to 256 entries."""
    with pytest.raises(InputError, match="clusters"):
        compression.share_weights(networks.mlp(4, 4, 2), clusters)


def test_sharing_twice_is_refused():
    """Shared weights are the plain model's business: the refusal says so."""
    shared = compression.share_weights(networks.mlp(4, 4, 2), 2)
    with pytest.raises(InputError, match="plain model"):
        compression.share_weights(shared, 2)
    with pytest.raises(InputError, match="Prune first"):
        compression.prune(shared, 0.5)
