"""Attention on a GPU: Triton kernels written from the derivation."""
