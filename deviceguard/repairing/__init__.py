"""Carries out remedies: on the operands of a call, on modules, on optimizers. Knows no rule."""
