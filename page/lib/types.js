// What the API answers, as far as the page looks at it. Keys that the page does not know are left alone.

/**
 * @typedef {{ asksForToken: boolean, name?: string, scope?: 'read' | 'operate' | 'admin', queues?: string[] }} Whoami
 *
 * @typedef {{ items: number, started: number, ended: number, failed: number, withoutItem?: number, waiting?: number, running?: number, completed?: number, cancelled?: number }} Children
 *
 * @typedef {object} Step
 * @property {string} name
 * @property {string} state
 * @property {string} [status]
 * @property {string} [queue]
 * @property {boolean} [external]
 * @property {string} [deadline]
 * @property {string} [retryAt]
 * @property {{ since: string, limits: { limit: string, key?: string }[] }} [waitsFor]
 * @property {number | string} [progress]
 * @property {string} [message]
 * @property {number} attempt
 * @property {string} [startTime]
 * @property {string} [endTime]
 * @property {number} [elapsed]
 * @property {string} [attemptStartTime]
 * @property {number} [attemptElapsed]
 * @property {string} [reason]
 * @property {string} [raw]
 * @property {string} [warning]
 * @property {Children} [children]
 *
 * @typedef {object} Attempt
 * @property {number} attempt
 * @property {string} [startTime]
 * @property {string} [confirmed]
 * @property {string} [endTime]
 * @property {string} state
 * @property {string} [reason]
 * @property {string} [raw]
 * @property {string} [retryAt]
 * @property {number} [round]
 * @property {number} [redispatched]
 *
 * @typedef {Step & { inputBytes?: number, outputBytes?: number, attempts?: Attempt[], attemptsOmitted?: number }} StepDetail
 *
 * @typedef {object} Job
 * @property {string} uuid
 * @property {string} [label] what its workflow has people call it
 * @property {Record<string, string | number | boolean>} [columns]
 * @property {string} workflow
 * @property {string} [vhost]
 * @property {string} [task]
 * @property {string} state
 * @property {string} [reason]
 * @property {string} created
 * @property {string} [ended]
 * @property {string} [deadline]
 * @property {string} [startsAt]
 * @property {{ since: string, limits: { limit: string, key?: string }[] }} [waitsFor] the place of a limit without which it does not begin
 * @property {string} [schedule] the full name of what started it, for this slot
 * @property {string} [slot]
 * @property {{ job: string, root: string, item: number, step?: string }} [parent]
 * @property {string} [definition]
 * @property {number} entries
 * @property {Step[]} steps
 *
 * @typedef {object} StepDefinition
 * @property {string} name
 * @property {string[]} [depends]
 * @property {string} [queue]
 * @property {string} [bus]
 * @property {string} [task]
 * @property {string | number} [timeout]
 * @property {{ attempts: number, backoff: string, factor: number, maxBackoff: string }} [retry]
 * @property {string | string[]} [limit]
 * @property {string} [waitAtMost]
 * @property {string} [startWithin]
 * @property {string} [when]
 * @property {string} [cancelWhen]
 * @property {string} [onFailure]
 * @property {boolean} [external]
 * @property {string} [statusKey]
 * @property {string[]} [statuses]
 * @property {string} [skippedStatus]
 * @property {string} [cancelledStatus]
 * @property {string[]} [replyUsers]
 *
 * @typedef {{ name: string, itemListKey: string, itemKey?: string, maxConcurrency?: number, tolerate?: string | number, recursive?: boolean, steps: StepDefinition[] }} TaskDefinition
 *
 * @typedef {object} Definition
 * @property {string} hash
 * @property {string} vhost
 * @property {string} name
 * @property {StepDefinition[]} steps
 * @property {TaskDefinition[]} [tasks]
 * @property {string[]} [queues]
 * @property {string[]} [result]
 * @property {string | number} [deadline]
 * @property {string | number} [retention]
 * @property {{ use: string, then: string, delay?: string, waitAtMost?: string }} [limit]
 * @property {string} [label]
 * @property {{ name: string, value: string }[]} [columns]
 * @property {boolean} [loaded]
 *
 * @typedef {Omit<Definition, 'hash'>} CheckedDefinition
 * @typedef {{ file: string, line: number, column: number, workflow?: string, task?: string, step?: string, message: string }} Diagnostic
 * @typedef {{ valid: boolean, workflows: CheckedDefinition[], warnings: Diagnostic[], errors: Diagnostic[] }} Check what the check of a workflow file says
 *
 * @typedef {{ job: string, cause: string, step?: string, why: string }} Why
 *
 * @typedef {{ n: number, at: string, kind: string, step?: string, attempt?: number, payload?: string, payloadBytes?: number, payloadOmitted?: boolean, item?: number, items?: number, from?: number, count?: number, job?: string, reason?: string, status?: string, message?: string, progress?: unknown, warning?: string, retryAt?: string, queue?: string, raw?: string }} Entry
 *
 * @typedef {{ job: string, workflow: string, state: string, created: string, ended?: string, reason?: string, label?: string, columns?: Record<string, string | number | boolean>, startsAt?: string, failedItems?: boolean, steps?: { done?: number, total: number }, step?: string, item?: number }} Found
 * @typedef {{ job: string, workflow: string, root?: string, task?: string, item?: number, label?: string, columns?: Record<string, string | number | boolean>, step: string, attempt: number, status: string, since: string, statusKey?: string, statuses?: string[] }} InboxStep
 * @typedef {{ steps: InboxStep[], count: number, workflows: Record<string, number>, unreadable: number, next?: string }} InboxPage
 *
 * @typedef {{ jobs: Found[], next?: string, count?: number, countIsMinimum?: boolean }} FoundPage
 *
 * @typedef {{ reason: string, reasonId: string, workflow: string, count: number, children: number, first: string, last: string, job: string, example: string }} FailedReason jobs and child jobs that failed alike
 * @typedef {{ failures: number, failuresIsMinimum?: boolean, reasons: FailedReason[] }} FailedReasons
 *
 * @typedef {{ job: string, step: string, item: number, state: string, created: string, ended?: string, reason?: string }} Child
 *
 * @typedef {object} WorkflowStats `states`: jobs that are kept; the other figures: within the span
 * @property {Record<string, number>} states
 * @property {{ job: string, created: string }} [oldestRunning]
 * @property {{ job: string, created: string, ended?: string, reason?: string }} [lastFailed]
 * @property {number} [created] what follows is missing at a manager that stands by
 * @property {number} [completed]
 * @property {number} [failed]
 * @property {number} [cancelled]
 * @property {[number, number][]} [perMinute]
 * @property {number} [p50]
 * @property {number} [p95]
 *
 * @typedef {{ vhost: string, name: string, job_count: number, loaded?: boolean, definition?: string, stats?: WorkflowStats }} Workflow
 *
 * @typedef {{ queue: string, vhost?: string, bus?: string, messages?: number, consumers?: number, unacknowledged?: number, trouble?: string, nextCall?: string, full?: boolean, missing?: boolean, unknown?: string, oldest?: { job: string, step: string, since: string }, noLongerInFiles?: boolean, usedBy?: { workflow: string, task?: string, step: string, noLongerInFiles?: boolean }[] }} Queue
 *
 * @typedef {{ items: number, waiting: number, running: number, completed: number, failed: number, cancelled: number, window?: number, tolerate?: string | number, tolerated?: number }} Items
 * @typedef {{ failed: number, failedIsMinimum: boolean, reasons: { reason: string, reasonId?: string, count: number, item: number, job: string, example?: string }[] }} Reasons
 * @typedef {{ job: string, state: string, created: string, updated: string, label?: string, columns?: Record<string, string | number | boolean>, steps: Record<string, string> }} StatusRow
 * @typedef {{ manager: string, address?: string, since: string }} ActiveManager
 * @typedef {object} Cluster the managers that share a database
 * @property {string} name
 * @property {'active' | 'standby'} role of the one that answers
 * @property {ActiveManager} [active] missing if it is not known
 * @property {string} [problem] why names and managers are missing
 * @property {{ name: string, epoch: number, active?: ActiveManager }[]} names
 * @property {{ id: string, name: string, version: string, state: string, address?: string, seenAgo: number }[]} managers
 *
 * @typedef {{ version: string, commit?: string, started: string, uptime: number, ready?: boolean, journal?: { file: string, bytes?: number, walBytes?: number, freeBytes?: number }, checks?: { name: string, ok: boolean, detail?: string }[], buses?: Record<string, unknown>[], actors?: { kind: string, count?: number, mailbox: number, mailboxMax: number, handled: number, restarts: number }[], streams?: number, webhookWaiting?: number, lastReload?: string, cluster?: Cluster }} Manager
 * @typedef {'limitChange' | 'limitPause' | 'queuePause' | 'workflowPause'} ControlKind
 * @typedef {{ kind: ControlKind, bus?: string, vhost: string, name: string, rate?: string, burst?: number, concurrency?: number, reason?: string, by?: string, since: string, until?: string, waiting?: number }} Control what is paused or changed for a time
 *
 * @typedef {{ slot: string, at: string, verdict: string, job?: string, reason?: string, slots: number }} Judgement of a slot, or of several in a row
 * @typedef {{ name: string, vhost: string, workflow: string, timing: string, paused?: { since: string, reason?: string, by?: string }, waiting?: string, refused?: { since: string, reason: string }, next: string[], judgements: Judgement[] }} Schedule
 *
 * @typedef {{ hash: string, loaded: boolean, running: number, ended: number, lastEnded?: string }} Version
 */

export {};
