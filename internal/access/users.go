package access

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/crypto/bcrypt"
)

const (
	// Cost of the hashes that are made: about a quarter of a second.
	Cost = 12
	// minCost and maxCost of those that are taken: less is guessed too fast, more holds up the machine.
	minCost, maxCost = 10, 15
	// maxPassword is where bcrypt stops to look, and minPassword what is worth a hash.
	maxPassword, minPassword = 72, 12
	maxUsersFile             = 1 << 20
	// usersEvery is how often the file is looked at.
	usersEvery = time.Second
	// maxHashing at a time; others wait for hashWait.
	maxHashing, hashWait = 2, 5 * time.Second
)

// user is one line of the file.
type user struct {
	name  string
	role  Role
	hash  []byte
	proof [sha256.Size]byte // of the whole line: a session ends when it changes
}

// users are those of a file, which is read again when it has changed. Safe for concurrent use.
type users struct {
	path   string
	read   func(string) ([]byte, error)
	logger zerolog.Logger
	clock  func() time.Time
	least  int // cost of a hash

	mu      sync.Mutex
	looked  time.Time
	content []byte
	failed  string // what was last said of a file that cannot be read
	known   map[string]user
	decoy   []byte // as costly as the costliest hash

	hashing  chan struct{} // places
	compared atomic.Int64
}

// load reads the file for the first time.
func (u *users) load() error {
	content, err := u.file()
	if err != nil {
		return err
	}
	known, decoy, err := parseUsers(content, u.least)
	if err != nil {
		return fmt.Errorf("%s: %w", u.path, err)
	}
	u.content, u.known, u.decoy, u.looked, u.hashing = content, known, decoy, u.clock(), make(chan struct{}, maxHashing)
	return nil
}

func (u *users) file() ([]byte, error) {
	content, err := u.read(u.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("read the users of the console: %w; `surefoot console hash-password` makes its lines", err)
	case err != nil:
		return nil, fmt.Errorf("read the users of the console: %w", err)
	case len(content) > maxUsersFile:
		return nil, fmt.Errorf("read the users of the console: %s has more than %d bytes", u.path, maxUsersFile)
	}
	return content, nil
}

// current reads the file again if it has changed. One that cannot be used is logged, and what was known before holds.
func (u *users) current() (map[string]user, []byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if now := u.clock(); now.Sub(u.looked) >= usersEvery {
		u.looked = now
		if err := u.reload(); err != nil && err.Error() != u.failed {
			u.failed = err.Error()
			u.logger.Error().Err(err).Msg("console users not read again; those known before hold")
		} else if err == nil {
			u.failed = ""
		}
	}
	return u.known, u.decoy
}

func (u *users) reload() error {
	content, err := u.file()
	if err != nil || bytes.Equal(content, u.content) {
		return err
	}
	known, decoy, err := parseUsers(content, u.least)
	if err != nil {
		return fmt.Errorf("%s: %w", u.path, err)
	}
	u.content, u.known, u.decoy = content, known, decoy
	u.logger.Info().Int("users", len(known)).Msg("console users read again")
	return nil
}

// parseUsers reads NAME:ROLE:HASH lines. Its errors do not have the hashes.
func parseUsers(content []byte, least int) (known map[string]user, decoy []byte, err error) {
	known = map[string]user{}
	most, n := least, 0
	for line := range strings.Lines(string(content)) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		u, cost, err := parseUser(line, least)
		if err != nil {
			return nil, nil, fmt.Errorf("line %d: %w", n, err)
		}
		if _, twice := known[u.name]; twice {
			return nil, nil, fmt.Errorf("line %d: %q is there twice", n, u.name)
		}
		known[u.name] = u
		most = max(most, cost)
	}
	if len(known) == 0 {
		return nil, nil, errors.New("it has no users: surefoot console hash-password makes a line")
	}
	if decoy, err = bcrypt.GenerateFromPassword([]byte(rand.Text()), most); err != nil {
		return nil, nil, fmt.Errorf("hash: %w", err)
	}
	return known, decoy, nil
}

func parseUser(line string, least int) (u user, cost int, err error) {
	name, rest, _ := strings.Cut(line, ":")
	role, hash, complete := strings.Cut(rest, ":")
	if !complete || !fitName(name) {
		return u, 0, errors.New("must be NAME:ROLE:HASH, as surefoot console hash-password prints it")
	}
	u = user{name: name, hash: []byte(hash), proof: sha256.Sum256([]byte(line))}
	if u.role, err = RoleOf(role); err != nil {
		return u, 0, err
	}
	if cost, err = bcrypt.Cost(u.hash); err != nil || cost < least || cost > maxCost {
		return u, 0, fmt.Errorf("the hash must be one of bcrypt with a cost from %d to %d", least, maxCost)
	}
	return u, cost, nil
}

var errHashing = errors.New("too many logins at a time")

// check compares a password; for a name that is unknown with a hash of nobody, which takes as long.
func (u *users) check(ctx context.Context, name, password string) (found user, fits bool, err error) {
	all, decoy := u.current()
	found, known := all[name]
	hash := found.hash
	if !known {
		hash = decoy
	}
	ctx, cancel := context.WithTimeout(ctx, hashWait)
	defer cancel()
	select {
	case u.hashing <- struct{}{}:
		defer func() { <-u.hashing }()
	case <-ctx.Done():
		return user{}, false, errHashing
	}
	u.compared.Add(1)
	same := bcrypt.CompareHashAndPassword(hash, []byte(password[:min(len(password), maxPassword)])) == nil
	return found, same && known && len(password) <= maxPassword, nil
}

// holds says whether a session's line still stands in the file.
func (u *users) holds(name string, proof [sha256.Size]byte) bool {
	all, _ := u.current()
	found, known := all[name]
	return known && found.proof == proof
}

// HashPassword makes a line of the file.
func HashPassword(name string, role Role, password string) (string, error) {
	switch {
	case !fitName(name) || strings.ContainsAny(name, ":#"):
		return "", fmt.Errorf("%q is no name: use plain text without colons, at most %d bytes", name, maxNameBytes)
	case len(password) > maxPassword:
		return "", fmt.Errorf("a password has at most %d bytes: more would not count", maxPassword)
	case len(password) < minPassword:
		return "", fmt.Errorf("a password has at least %d characters", minPassword)
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(password), Cost)
	if err != nil {
		return "", fmt.Errorf("hash the password: %w", err)
	}
	return name + ":" + role.String() + ":" + string(hash), nil
}
