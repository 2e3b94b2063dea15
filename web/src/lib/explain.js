/* What the short words for trouble mean, and what helps. */
import { pick } from "./shape.js";

const REASONS = {
  ACK_TIMEOUT:
    "The node got the job but did not acknowledge it in time (reservation_ttl_ms). It is overloaded, stuck, " +
    "or its messages do not reach the server.",
  NODE_LOST:
    "The node fell silent while it ran the job; its lease ran out. Look at the node: is its machine up, can it reach the server?",
  RUN_TIMEOUT: "The job ran longer than its timeout_ms and its node did not end it in time.",
  TIMEOUT: "The job ran longer than its timeout_ms and was ended.",
  QUEUE_TIMEOUT: "No slot came free within queue_ms. More machines, fewer jobs, or a longer queue_ms.",
  CANCELLED: "Somebody cancelled it.",
  NO_CAPABLE_NODE: "No registered node can do this: no node has this type in its allowed types, or this language pair.",
  ALL_CANDIDATES_FULL_OR_FAILED:
    "There are nodes that can do this, but each was full, not ready or out of reach. Give the job a queue_ms to let it wait.",
  PREFERRED_NODE_NOT_CAPABLE: "The node that was asked for cannot do this work.",
  PREFERRED_NODE_UNAVAILABLE: "The node that was asked for is full, not ready or out of reach.",
  SCHEDULER_DEPENDENCY_DOWN: "The store did not answer, so nothing is dispatched: rather none than twice.",
  OUTCOME_UNKNOWN: "The store did not answer in time: it may have been accepted. Unless somebody asked for it again, it was ended.",
  SCHEDULER_BUSY: "Too much is in flight; ask again in a moment.",
  STORE_FULL: "Redis is near its maxmemory, so no new work is taken. It goes on by itself as soon as there is room.",
  QUEUE_FULL: "Too many jobs wait already.",
  QUOTA_EXCEEDED: "The token it came with has used up its quota.",
  NODE_OVERLOADED: "The node refused: it was full by its own count.",
  TYPE_NOT_ALLOWED: "The node refused: it does not take this type of work.",
  OOM: "It used more memory than it may and was ended by the kernel.",
  DISK_LIMIT: "It wrote more into its directory than it may and was ended by its node.",
  START_FAILED: "Its command could not be started. The log has the reason.",
  SHIM_LOST: "The process that watched over the job died with it.",
  EMERGENCY: "Ended to save its machine, which had reached the critical level.",
  emergency_degradation: "Ended to save its machine, which had reached the critical level.",
  DEADLINE: "The reservation was over when the node wanted to start it.",
  FULL: "no free slot",
  NOT_READY: "not ready",
  STALE: "no heartbeat lately",
  NO_CAPACITY: "takes no jobs",
  SEND_FAILED: "out of reach",
  TRIED_BEFORE: "tried before",
  REQUIRES: "labels do not match",
  LEVEL: "machine too busy",
  ROUTE: "not on the route of this type",
  NAMESPACE: "kept for other namespaces",
  TOO_SMALL: "has less than it needs",
  RESOURCES: "too little left of what it needs",
  BREAKER_OPEN: "breaker open",
};

const LEVELS = {
  warning: "Busy: only work of high priority starts here.",
  danger: "Too busy: no new work starts here until it calms down.",
  critical: "In distress: no new work, and the least important work may be ended to save the machine.",
};

export function reasonText(reason) {
  if (!reason) return null;
  const told = pick(REASONS, reason); /* a node may have chosen it */
  if (told) return told;
  if (/^EXIT_\d+$/.test(reason))
    return `Its command ended with exit code ${reason.slice(5)}. The log below tells what it said.`;
  if (/^SIGNAL_/.test(reason)) return `Its process was ended by the signal ${reason.slice(7)}.`;
  return "The node's own word for what went wrong.";
}

export function levelText(level) {
  return pick(LEVELS, level) || null;
}

/* What a level that is not normal is about. */
export function whatTripped(server) {
  return server.tripped === "disk" ? "too little free disk" : `too much ${server.tripped || "load"}`;
}

/* Why a server takes no work right now: {text, bad}, bad where somebody should look; null when it does. */
export function whyNoRoom(server) {
  if (!server.online) return { text: server.offline_reason || "offline", bad: true };
  if (server.admin === "draining") return { text: "draining, what runs may end" };
  if (server.admin === "cordoned") return { text: "cordoned" };
  if (server.level === "danger" || server.level === "critical")
    return { text: whatTripped(server), bad: true };
  if (server.health !== "ready") return { text: `health is ${server.health}`, bad: true };
  if (server.slots_available > 0) return null;
  if (server.slots_in_use >= server.slots_max && server.slots_max > 0) return { text: "all slots in use" };
  return { text: "no slots at this load", bad: true };
}

/* good, warning, danger, critical, off: how a server is, for its colour. */
export function severity(server) {
  if (!server.online) return "off";
  if (server.level === "critical" || server.level === "danger" || server.level === "warning") return server.level;
  if (server.admin || server.health !== "ready") return "held";
  return "good";
}

const ORDER = { critical: 0, danger: 1, off: 2, warning: 3, held: 4, good: 5 };

/* The worst have the lowest. */
export function rank(server) {
  return ORDER[severity(server)];
}
