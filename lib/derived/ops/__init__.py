"""Derived operations: each a forward `f(x)` and `f_vjp(x) -> (y, pullback)`, one idea a file.

A pullback takes the gradient of the loss with respect to y and returns the gradient with respect to each
differentiable argument: bare if there is one, else a tuple in argument order. Arrays may be numpy or torch;
float16 and bfloat16 are computed in float32 and rounded at the end.
"""
