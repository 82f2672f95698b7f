/** What holds over gRPC and HTTP alike, where a manager lends its messages. */

/** How long an answer may take, unless something is in hand. */
export const ANSWER_SECONDS_MAX = 30;
/** Leases are extended so often within their time. */
export const EXTENDS_PER_LEASE = 6;
/** With something in hand an answer may take this part of a lease, so that at a machine that is gone there is time left for the next address. */
export const ANSWERS_PER_LEASE = 3;
export const EXTEND_SECONDS_MIN = 1;
/** How long replies are sent again while the worker stops. */
export const STOP_SECONDS_MAX = 20;
