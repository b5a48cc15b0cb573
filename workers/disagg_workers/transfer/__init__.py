"""KV between two workers: bytes that really travel, and a link that takes its modelled time.

    payload   one block's content as bytes, and back
    pins      what a prefill worker keeps for decode workers, and for how long
    server    serves pulls (prefill side)
    client    pulls (decode side)
    link      the modelled link: one transfer after the other
    inbound   one sequence's pull from queueing to arrival

A pin is a lease. The decode side renews it while its request queues, acknowledges it once the KV has arrived, and may
die at any time: silence frees the pin. Ids of transfers are fresh for every attempt and never a client's, so a late or
repeated message finds nothing (cases KV6, KV8). A failure touches one request: nothing is remembered of it (case KV4).
"""
