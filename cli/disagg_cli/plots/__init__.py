"""Plots that can be read from the back of a room.

    canvas      figure, colours, fonts and saving, the same for all
    attainment  attainment against rate, with the goodput
    cdf         distribution of TTFT and TPOT, with the promises
    timeline    what one instance did when: prefill and decode slices, queue, KV

matplotlib comes with the extra `disagg[plots]` and is imported when a plot is asked for. The kind of file (PNG, SVG
or PDF) is what the name ends in, and the same figures give the same bytes.
"""
