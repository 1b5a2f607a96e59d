"""Inner products, tables of vectors and recurrent layers."""
from __future__ import annotations

from tests.oracle.draft import Draft, kind

UNIFORM = {"type": "uniform", "min": -0.5, "max": 0.5}


@kind("InnerProduct", weight=5)
def inner_product(net: Draft) -> None:
    name = net.blob()
    fields = {"num_output": net.pick(1, 2, 3, 5)} | net.some(0.4, axis=[net.axis(len(net.shapes[name]))])
    net.add("InnerProduct", [name], inner_product_param=fields | net.some(0.3, bias_term=[True, False], transpose=[True, False]))


@kind("Embed")
def embed(net: Draft) -> None:
    words = net.pick(2, 3, 5)
    index = net.input(net.pick((3,), (2, 4), (2, 1, 2)), ("integers", 0, words), "index")
    net.add("Embed", [index], embed_param={"num_output": net.pick(1, 3, 4), "input_dim": words} | net.some(0.5, bias_term=[True, False]))


@kind("MatMul")
def matmul(net: Draft) -> None:
    rows, inner, columns = net.pick(1, 2, 3), net.pick(1, 2, 4), net.pick(1, 2, 3)
    net.add("MatMul", [net.data((rows, inner)), net.data((columns, inner))], matmul_param={"dim_1": rows, "dim_2": inner, "dim_3": columns})


@kind("LSTM", "RNN")
def recurrent(net: Draft, type: str) -> None:
    steps, samples, outputs = net.pick(1, 2, 3, 4), net.pick(1, 2, 3), net.pick(1, 2, 3)
    bottoms = [net.data((steps, samples, net.pick(1, 2, 4), *([2] if net.chance(0.2) else []))), net.input((steps, samples), ("bits", 0.7), "continues")]
    if net.chance(0.3):
        bottoms.append(net.data((samples, net.pick(2, 3))))
    fields = {"num_output": outputs, "weight_filler": UNIFORM}
    states = 2 if type == "LSTM" else 1
    tops = 1
    if net.chance(0.3):
        fields["expose_hidden"] = True
        bottoms += [net.input((1, samples, outputs)) for _ in range(states)]
        tops += states
    names = net.add(type, bottoms, tops, recurrent_param=fields)
    for top in names[1:]:
        net.shapes.pop(top, None)
        net.closed.add(top)


@kind("Lstm")
def lstm_of_sequences(net: Draft) -> None:
    """One sequence: the package knows no others (tables)."""
    steps = net.pick(1, 2, 4)
    bottoms = [net.data((steps, 1, net.pick(1, 2, 3))), *([net.input((steps,), ("bits", 0.7), "continues")] if net.chance(0.5) else [])]
    tops = net.add("Lstm", bottoms, lstm_param={"num_output": net.pick(1, 2, 3), "weight_filler": UNIFORM} | net.some(0.4, clipping_threshold=[0.1, 1, 100]))
    net.read.update(tops)  # the package reads the top in its backward pass


@kind("LSTMUnit")
def lstm_unit(net: Draft) -> None:
    samples, size = net.pick(1, 2, 3), net.pick(1, 2, 3)
    bottoms = [net.data((1, samples, size)), net.data((1, samples, 4 * size)), net.input((1, samples), ("bits", 0.6), "continues")]
    net.add("LSTMUnit", bottoms, 2)
