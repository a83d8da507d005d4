"""Op contracts, the torch reference that is their oracle and CPU backend, and the choice of ops.

``contracts`` says what each op computes, ``table`` holds one chosen callable per op, ``select``
chooses them from the installed backends, ``reference`` implements all of them in torch.
"""
