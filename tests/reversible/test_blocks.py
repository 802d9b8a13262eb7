"""Reversible blocks on PyTorch: gradients of plain autograd, whatever the modules do; what cannot be undone is named."""

from __future__ import annotations

import copy
import math

import pytest

from steptime.errors import InputError, RangeError

torch = pytest.importorskip("torch", reason="PyTorch is an extra: pip install 'steptime[torch]'")
nn = torch.nn

from steptime.reversible.reversible_blocks import ReversibleBlock, ReversibleSequence, halves  # noqa: E402

pytestmark = pytest.mark.slow  # the stage that has PyTorch


def function(width, *, dropout=0.0, bias=True):
    return nn.Sequential(
        nn.LayerNorm(width), nn.Linear(width, width, bias=bias), nn.GELU(), nn.Dropout(dropout), nn.Linear(width, width)
    )


def stack(depth=4, width=16, dtype=torch.float64, make=function, **more):
    torch.manual_seed(0)
    pairs = [(make(width // 2, **more), make(width // 2, **more)) for _ in range(depth)]
    return ReversibleSequence([ReversibleBlock(f, g) for f, g in pairs]).to(dtype)


def plain(sequence, x, dim=-1):
    pair = x.chunk(2, dim)
    for block in sequence.blocks:
        pair = block.coupled(*pair)
    return torch.cat(pair, dim)


def gradients(run, sequence, x, seed=1):
    """Return the output, and the gradients of the input and of all parameters."""
    sequence.zero_grad()
    x = x.clone().requires_grad_()
    torch.manual_seed(seed)
    y = run(x)
    (y.float() ** 2).sum().backward()
    return y.detach(), [x.grad, *(parameter.grad for parameter in sequence.parameters())]


def distance(found, true):
    norm = sum(float(t.double().square().sum()) for t in true if t is not None)
    off = sum(float((f.double() - t.double()).square().sum()) for f, t in zip(found, true, strict=True) if t is not None)
    return math.sqrt(off / norm)


def alike(sequence, x, tolerance=1e-12):
    """Check that output and gradients are those of plain autograd; return how far gradients are."""
    y, true = gradients(lambda x: plain(sequence, x), sequence, x)
    made, found = gradients(sequence, sequence, x)
    assert torch.equal(made, y)
    assert [grad is None for grad in found] == [grad is None for grad in true]
    assert distance(found, true) < tolerance
    return distance(found, true)


def test_gradients_are_those_of_plain_autograd_at_depth_64():
    assert alike(stack(64, 64), torch.randn(16, 64, dtype=torch.float64)) < 1e-12


@pytest.mark.parametrize("dropout", [0.2, 0.9])
def test_dropout_draws_the_same_numbers_again(dropout):
    alike(stack(8, dropout=dropout), torch.randn(5, 16, dtype=torch.float64))
    sequence, x = stack(8, dropout=dropout), torch.randn(5, 16, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(3)
    sequence(x).sum().backward()
    after = torch.rand(1)
    torch.manual_seed(3)
    plain(sequence, x).sum()
    assert torch.equal(after, torch.rand(1))  # what comes after draws as if nothing had been computed twice


def test_a_single_block_and_any_dimension():
    torch.manual_seed(0)
    conv = [nn.Conv2d(3, 3, 3, padding=1) for _ in range(2)]
    block = ReversibleBlock(*conv, dim=1).double()
    sequence, x = ReversibleSequence([block], dim=1), torch.randn(2, 6, 4, 4, dtype=torch.float64)
    y, true = gradients(lambda x: plain(sequence, x, 1), sequence, x)
    for run in (block, sequence):
        made, found = gradients(run, sequence, x)
        assert torch.equal(made, y)
        assert distance(found, true) < 1e-12
        torch.testing.assert_close(run.inverse(made), x)


def test_batch_norms_count_once():
    def normed(width):
        return nn.Sequential(nn.BatchNorm1d(width), nn.Linear(width, width))

    one = stack(3, make=normed)
    other = copy.deepcopy(one)
    x = torch.randn(32, 16, dtype=torch.float64)
    _, true = gradients(lambda x: plain(one, x), one, x)
    _, found = gradients(other, other, x)
    assert distance(found, true) < 1e-10
    for (name, a), b in zip(one.named_buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(a, b, msg=name)


def test_shared_and_frozen_parameters_and_those_without_a_gradient():
    torch.manual_seed(0)
    shared = function(8)
    blocks = [
        ReversibleBlock(shared, function(8)),
        ReversibleBlock(shared, nn.Identity()),
        ReversibleBlock(function(8), shared),
    ]
    sequence = ReversibleSequence(blocks).double()
    sequence.blocks[0].g[1].weight.requires_grad_(False)
    sequence.blocks[2].f.register_parameter("unused", nn.Parameter(torch.zeros(3, dtype=torch.float64)))
    alike(sequence, torch.randn(4, 16, dtype=torch.float64))
    for parameter in sequence.parameters():
        parameter.requires_grad_(False)
    alike(sequence, torch.randn(4, 16, dtype=torch.float64))


def test_tied_weights_and_a_module_used_twice():
    torch.manual_seed(0)

    def tied(width):
        one, other = nn.Linear(width, width), nn.Linear(width, width)
        other.weight = one.weight
        return nn.Sequential(one, nn.Tanh(), other, nn.Tanh(), one)

    sequence = stack(2, make=tied)
    before = [id(parameter) for parameter in sequence.parameters()]
    alike(sequence, torch.randn(4, 16, dtype=torch.float64))
    assert [id(parameter) for parameter in sequence.parameters()] == before


def test_blocks_within_blocks():
    torch.manual_seed(0)

    def inner(width):
        return nn.Sequential(nn.Linear(width, width), ReversibleSequence([ReversibleBlock(function(4), function(4))] * 2))

    alike(stack(3, make=inner), torch.randn(4, 16, dtype=torch.float64))


def test_input_without_a_gradient_no_gradient_at_all_and_twice():
    sequence, x = stack(3), torch.randn(4, 16, dtype=torch.float64)
    sequence(x).sum().backward()
    found = [parameter.grad.clone() for parameter in sequence.parameters()]
    sequence.zero_grad()
    plain(sequence, x).sum().backward()
    assert distance(found, [parameter.grad for parameter in sequence.parameters()]) < 1e-12
    with torch.no_grad():
        assert not sequence(x).requires_grad
        torch.testing.assert_close(sequence.inverse(sequence(x)), x)
    x.requires_grad_()
    y = sequence(x).sum()
    once = torch.autograd.grad(y, x, retain_graph=True)[0]
    assert torch.equal(once, torch.autograd.grad(y, x)[0])
    with pytest.raises(RuntimeError, match=r"once_differentiable|not have been used"):
        torch.autograd.grad(torch.autograd.grad(sequence(x).square().sum(), x, create_graph=True)[0].sum(), x)


def test_hooks_on_parameters_see_their_gradients():
    sequence, seen = stack(2), []
    for parameter in sequence.parameters():
        parameter.register_hook(lambda grad: seen.append(tuple(grad.shape)))
    sequence(torch.randn(4, 16, dtype=torch.float64)).sum().backward()
    assert len(seen) == len(list(sequence.parameters()))  # once each


@pytest.mark.parametrize(("dtype", "least", "most"), [(torch.float32, 1e-9, 1e-5), (torch.bfloat16, 1e-5, 0.1)])
def test_narrow_floats_are_off_by_their_rounding(dtype, least, most):
    sequence, x = stack(16, 64, dtype), torch.randn(16, 64, dtype=dtype)
    assert least < alike(sequence, x, most)


def test_mixed_precision_is_computed_again_as_it_was():
    sequence, x = stack(8, 64, torch.float32), torch.randn(16, 64)

    def under(run):
        def cast(x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return run(x)

        return cast

    y, true = gradients(under(lambda x: plain(sequence, x)), sequence, x)
    made, found = gradients(under(sequence), sequence, x)
    assert y.dtype == made.dtype == torch.float32
    assert torch.equal(made, y)
    assert distance(found, true) < 2e-3  # streams are float32: far less than what bfloat16 rounds
    _, exact = gradients(sequence, sequence, x)
    assert distance(found, exact) > 2e-3


def test_an_input_may_be_let_go_and_comes_back():
    torch.manual_seed(0)
    sequence = stack(3)
    free = ReversibleSequence(sequence.blocks, free_input=True)
    before = nn.Sequential(nn.Linear(16, 16), nn.Tanh()).double()  # which keeps its output, and that alone
    x, given = torch.randn(4, 16, dtype=torch.float64), []

    def run(last):
        made = before(x)
        given.append(made)
        y = last(made)
        size = made.untyped_storage().nbytes()
        (y**2).sum().backward()
        grads = [parameter.grad.clone() for part in (before, sequence) for parameter in part.parameters()]
        before.zero_grad()
        sequence.zero_grad()
        return size, grads

    (kept, true), (gone, found) = run(sequence), run(free)
    assert (kept, gone) == (4 * 16 * 8, 0)
    assert distance(found, true) < 1e-12
    torch.testing.assert_close(given[1], given[0])
    before[1] = nn.ReLU()
    (_, true), (_, found) = run(sequence), run(free)
    assert distance(found, true) > 1e-3  # zeros come back as roundings: why a ReLU before it is warned of
    leaf = torch.randn(4, 16, dtype=torch.float64, requires_grad=True)
    free(leaf).sum().backward()
    assert leaf.untyped_storage().nbytes() == 4 * 16 * 8


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_it_runs_within_what_is_compiled(dropout):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), stack(2, dtype=torch.float32, dropout=dropout), nn.Linear(16, 4))
    x = torch.randn(8, 16)
    _, true = gradients(model, model, x)
    compiled = torch.compile(model, backend="aot_eager")
    _, found = gradients(compiled, model, x)
    assert distance(found, true) < 1e-5
    with pytest.raises(Exception, match=r"disable|graph break"):
        torch.compile(model, backend="aot_eager", fullgraph=True)(x)


class Two(nn.Module):
    def forward(self, x):
        return x, x


class Half(nn.Module):
    def forward(self, x):
        return x[..., : x.shape[-1] // 2]


@pytest.mark.parametrize(
    ("f", "says"),
    [
        (nn.Linear(4, 3), r"f of a reversible block \(Linear\) turns \(2, 4\) into \(2, 3\).*keep the shape"),
        (Half(), r"\(Half\) turns \(2, 4\) into \(2, 2\)"),
        (nn.ReLU(inplace=True), "changes its input in place.*inplace=False"),
        (Two(), r"\(Two\) gives a tuple, but a tensor is needed"),
        (nn.Linear(4, 4).double(), "float64, which is wider than torch.float32"),
    ],
)
def test_what_cannot_be_undone_is_named(f, says):
    x = torch.randn(2, 8)
    if isinstance(f, nn.Linear) and f.weight.dtype == torch.float64:
        f = nn.Sequential(Cast(), f)
    for run in (ReversibleBlock(f, nn.Linear(4, 4)), ReversibleSequence([ReversibleBlock(f, nn.Linear(4, 4))])):
        with pytest.raises(InputError, match=says):
            run(x)


class Cast(nn.Module):
    def forward(self, x):
        return x.double()


def test_bad_input_is_named():
    block = ReversibleBlock(nn.Linear(4, 4), nn.Linear(4, 4))
    with pytest.raises(RangeError, match=r"dimension -1 of a tensor of shape \(2, 7\) must be even.*use 6 or 8"):
        block(torch.randn(2, 7))
    with pytest.raises(RangeError, match=r"of shape \(2, 8\), contains NaN"):
        block(torch.full((2, 8), math.nan))
    with pytest.raises(InputError, match=r"works on floats, not torch\.int64"):
        block(torch.zeros(2, 8, dtype=torch.int64))
    with pytest.raises(RangeError, match="no dimension 3"):
        halves(torch.zeros(2, 8), 3)
    with pytest.raises(InputError, match=r"f of a reversible block is a torch\.nn\.Module, not function"):
        ReversibleBlock(lambda x: x, nn.Identity())
    for wrong in ([], [nn.Linear(4, 4)]):
        with pytest.raises(InputError, match="one ReversibleBlock or more"):
            ReversibleSequence(wrong)


def test_weights_that_change_before_the_backward_pass_are_refused():
    sequence, x = stack(2), torch.randn(4, 16, dtype=torch.float64)
    y = sequence(x).sum()
    with torch.no_grad():
        sequence.blocks[0].f[1].weight.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_dropout_on_a_gpu():
    sequence = stack(8, dropout=0.2).cuda()
    alike(sequence, torch.randn(5, 16, dtype=torch.float64, device="cuda"))
