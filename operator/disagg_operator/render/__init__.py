"""From decisions to what a runtime needs: manifests and command lines; and back from manifests to values.

Pure builders, one file an object. Both runtimes take the settings of their programs from ``configs``, so a flag cannot
differ between ``kubectl apply`` and ``disagg up``.
"""
