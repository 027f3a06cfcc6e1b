"""Functions a Triton source may call, and how Triton spells what C++ spells otherwise."""

HEAD = "import triton\nimport triton.language as tl\n"
FUNCTIONS = {
    # The hardware's exponential is off by as many units as the argument is large; see codegen/cpp_functions.py.
    "exp_of": """@triton.jit
def exp_of(x):
    x = tl.maximum(x, -110.0, propagate_nan=tl.PropagateNan.ALL)
    x = tl.minimum(x, 110.0, propagate_nan=tl.PropagateNan.ALL)
    whole = tl.floor(x * 1.4426950408889634 + 0.5)
    r = (x - whole * 0.693145751953125) - whole * 1.428606765330187e-06
    p = 0.0013814602280035615 * r + 0.008368715643882751
    p = p * r + 0.04166838899254799
    p = p * r + 0.1666652113199234
    p = p * r + 0.4999999403953552
    p = p * (r * r) + r + 1.0
    power = whole.to(tl.int32)
    half = power >> 1
    first = ((half + 127) << 23).to(tl.float32, bitcast=True)
    second = ((power - half + 127) << 23).to(tl.float32, bitcast=True)
    return p * first * second""",
    "tanh_of": """@triton.jit
def tanh_of(x):
    z = x * x
    far = 1.0 - tl.div_rn(2.0, exp_of(2.0 * tl.abs(x)) + 1.0)
    p = -0.00605369732 * z + 0.0209681876
    p = p * z - 0.0538449883
    p = p * z + 0.133327335
    p = p * z - 0.333333284
    return tl.where(tl.abs(x) < 0.625, x + x * (z * p), tl.where(x < 0, -far, far))""",
    "sigmoid": """@triton.jit
def sigmoid(x):
    return tl.div_rn(1.0, 1.0 + exp_of(-x))""",
    "silu": """@triton.jit
def silu(x):
    return tl.div_rn(x, 1.0 + exp_of(-x))""",
    "gelu": """@triton.jit
def gelu(x):
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))""",
    "gelu_tanh": """@triton.jit
def gelu_tanh(x):
    return tl.div_rn(x, 1.0 + exp_of(-1.5957691216057308 * (x + 0.044715 * x * x * x)))""",
    "relu": """@triton.jit
def relu(x):
    return tl.where(x < 0, 0.0, x)""",
    "square": """@triton.jit
def square(x):
    return x * x""",
    "cube": """@triton.jit
def cube(x):
    return x * x * x""",
    "rsqrt": """@triton.jit
def rsqrt(x):
    return tl.div_rn(1.0, tl.sqrt_rn(x))""",
    "leaky": """@triton.jit
def leaky(x, slope):
    return tl.where(x > 0, x, x * slope)""",
    "larger": """@triton.jit
def larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)""",
    "smaller": """@triton.jit
def smaller(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)""",
}
"""By name; only those that are called are written into a source."""
SPELLED = {
    "({0} / {1})": "tl.div_rn({0}, {1})",
    "(1.0f / {0})": "tl.div_rn(1.0, {0})",
    "({0} ? {1} : {2})": "tl.where({0}, {1}, {2})",
    "chosen(": "tl.where(",
    "static_cast<float>({0})": "({0}).to(tl.float32)",
    "static_cast<int64_t>({0})": "({0}).to(tl.int64)",
    "int64_t(": "(",
    "std::exp(": "exp_of(",
    "std::tanh(": "tanh_of(",
    "std::erf(": "tl.erf(",
    "std::sqrt(": "tl.sqrt_rn(",
    "std::log(": "tl.log(",
    "std::floor(": "tl.floor(",
    "std::ceil(": "tl.ceil(",
    "std::abs(": "tl.abs(",
    "&&": "&",
    "||": "|",
    "(!{0})": "({0} == 0)",
    "-INFINITY": 'float("-inf")',
    "INFINITY": 'float("inf")',
    "NAN": 'float("nan")',
    "true": "True",
    "false": "False",
}
"""In this order."""
