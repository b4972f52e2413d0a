"""The one memory of identity.

Which parameters, models, optimizers and copies exist, where each was made, what replaced what. Weak references only;
nothing here keeps an object of the user alive.
"""
