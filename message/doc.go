// Package message is the envelope that travels from the outbox to a handler: what a message carries, how
// it maps to AMQP and back, which headers belong to whom, and how the record of a failure is written.
//
// It is a leaf: every other package may import it, and it knows neither a database nor a connection.
//
// Three parties write headers, and this package keeps them apart:
//
//   - the user's headers pass through untouched, from Enqueue to the handler, through retry, dead letter
//     and redrive;
//   - Surefoot's own (prefix "sf-", and x-attempts, x-reprocess, x-request-id, traceparent, tracestate)
//     are refused in [Message.Headers], because the fields of [Message] are their one source;
//   - the broker's own (x-death, x-delivery-count and their like) are stripped whenever a message is
//     published again: a copied x-death makes RabbitMQ up to 3.12, and again from 3.13.3, drop the message
//     at its next expiry.
package message
