package access

import (
	"context"
	"fmt"
)

// Role is what somebody may do; each includes those before it. The zero value is none.
type Role int

// Anyone needs no login. View looks, with payloads masked. Operate redrives, pauses, and acts on sagas and rows of the outbox. Admin also does
// what cannot be taken back: discards, and reveals what is masked.
const (
	Anyone Role = iota + 1
	View
	Operate
	Admin
)

// Roles are those that people can have, from least to most.
func Roles() []Role { return []Role{View, Operate, Admin} }

// String is the role as configurations have it.
func (r Role) String() string {
	switch r {
	case Anyone:
		return "anyone"
	case View:
		return "view"
	case Operate:
		return "operate"
	case Admin:
		return "admin"
	}
	return fmt.Sprintf("Role(%d)", int(r))
}

// RoleOf reads the role of a person.
func RoleOf(text string) (Role, error) {
	for _, r := range Roles() {
		if text == r.String() {
			return r, nil
		}
	}
	return 0, fmt.Errorf("%q is no role: use view, operate or admin", text)
}

// Person is who acts.
type Person struct {
	// Name for the audit.
	Name string
	Role Role
	// Address from which, behind a proxy that of its client. Never empty.
	Address string
	// Session says that there is one, which can be ended.
	Session bool
}

// May says whether the person has a role, or one that includes it; templates give its name.
func (p Person) May(role string) (bool, error) {
	r, err := RoleOf(role)
	return err == nil && p.Role >= r, err
}

type personKey struct{}

// With is a context of a request of this person.
func With(ctx context.Context, p Person) context.Context {
	return context.WithValue(ctx, personKey{}, p)
}

// From is who a request is from; without one nobody, who has no role.
func From(ctx context.Context) Person {
	p, _ := ctx.Value(personKey{}).(Person)
	return p
}
