"""How far the engine is from real engines, and constants that bring it nearer.

    silicon      rows of TTFT and TPOT at a concurrency             `read_silicon`
    runs         one recorded run of a real engine, per request     `read_run`
    steady       TPOT of a closed loop, in closed form
    loops        the batching loop, closed and open                 `closed_loop`, `replay`
    fitting      which rows are held out, and the fit               `calibrate`, `leave_one_out`
    run_fit      the fit to one recorded run                        `calibrate_run`
    deviation    what an error is                                   `Errors`, `Comparison`
    report       the whole, as plain values                         `silicon_report`, `run_report`

Measured rows are closed loops: `concurrency` requests of fixed lengths are always under way, each next one sent when
one ends. A recorded run is an open loop: its arrivals are given. Neither says how long one iteration took, so constants
are fitted through a model of the whole loop: in closed form where rows are many, by running the loop where it is one.
"""
