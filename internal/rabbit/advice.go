package rabbit

import (
	"errors"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Advice is what to do about the error of a broker that is there and lets nobody in: a vhost that it does not have, a user or a password that
// it does not know; and about a management API that refuses or does not answer. Empty for every other error.
func Advice(err error) string {
	refusal, ok := errors.AsType[*amqp.Error](err)
	switch {
	case IsNoVhost(err):
		return "create the vhost (rabbitmqctl add_vhost NAME, and set_permissions for the user), or correct its name in SUREFOOT_AMQP_URL"
	case ok && refusal.Code == amqp.AccessRefused && (refusal.Reason == amqp.ErrCredentials.Reason || strings.Contains(refusal.Reason, "Login was refused")):
		return "correct user and password in SUREFOOT_AMQP_URL; rabbitmqctl change_password sets another"
	case IsVhostDenied(err):
		return "let the user into the vhost: rabbitmqctl set_permissions --vhost NAME USER CONFIGURE WRITE READ; or correct user and vhost in SUREFOOT_AMQP_URL"
	case errors.Is(err, ErrManagementDenied):
		return "correct user and password, or give the user the tag that the management API wants: rabbitmqctl set_user_tags USER monitoring"
	case errors.Is(err, ErrManagementUnreachable):
		return "enable the plugin rabbitmq_management, or set SUREFOOT_MANAGEMENT_URL; `surefoot topology apply --yes` works without it"
	}
	return ""
}

// IsNoVhost recognises that there is no such vhost, by AMQP or by the management API.
func IsNoVhost(err error) bool {
	refusal, ok := errors.AsType[*amqp.Error](err)
	return errors.Is(err, ErrNoVhost) ||
		ok && refusal.Code == amqp.NotAllowed && strings.Contains(refusal.Reason, "vhost") && strings.Contains(refusal.Reason, "not found")
}

// IsVhostDenied recognises a vhost that the user may not enter.
func IsVhostDenied(err error) bool {
	refusal, ok := errors.AsType[*amqp.Error](err)
	return ok && refusal.Code == amqp.NotAllowed && strings.Contains(refusal.Reason, "refused for user")
}
