package drill

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
)

// Verdict of a drill.
type Verdict string

// The verdicts.
const (
	Passed      Verdict = "passed"
	Failed      Verdict = "failed"      // a check does not hold, or an arm could not be played
	Refused     Verdict = "refused"     // it was not run, for it would hurt what is not the local stack's
	Interrupted Verdict = "interrupted" // before its end
)

// Report is what one run of a drill found.
type Report struct {
	Drill   string    `json:"drill"`
	Section string    `json:"section"`
	Proves  string    `json:"proves"`
	Verdict Verdict   `json:"verdict"`
	Reason  string    `json:"reason,omitempty"` // why it is not passed, when no check says it
	Run     string    `json:"run"`
	Seed    int64     `json:"seed"`
	Began   time.Time `json:"began"`
	Seconds float64   `json:"seconds"`

	Environment Environment    `json:"environment"`
	Settings    []SettingValue `json:"settings"`
	Arms        []ArmReport    `json:"arms"`
	Checks      []CheckResult  `json:"checks"`
	// Files are the report's own, empty when it was not written.
	Files []string `json:"files"`
}

// Environment is what the figures depend on.
type Environment struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Host     string `json:"host"`
	System   string `json:"system"`
	CPUs     int    `json:"cpus"`
	Postgres string `json:"postgres"`
	RabbitMQ string `json:"rabbitmq"`
}

// SettingValue is a setting as it was.
type SettingValue struct {
	Name    string `json:"name"`
	Value   string `json:"value"`
	Default string `json:"default"`
	Means   string `json:"means"`
}

// ArmReport is what an arm found.
type ArmReport struct {
	Arm     string        `json:"arm"`
	Does    string        `json:"does"`
	Seconds float64       `json:"seconds"`
	Figures []FigureValue `json:"figures"`
	Tables  []Table       `json:"tables,omitempty"`
	// Error is why it could not be played to its end.
	Error string `json:"error,omitempty"`
}

// FigureValue is a figure for a report: the value as JSON has it (durations in nanoseconds), and its text.
type FigureValue struct {
	Name  string `json:"name"`
	Value any    `json:"value"`
	Text  string `json:"text"`
}

// Table shows single cases of an arm.
type Table struct {
	Title   string     `json:"title"`
	Columns []string   `json:"columns"`
	Rows    [][]string `json:"rows"`
}

// Text writes the report for people.
func (r *Report) Text(w io.Writer) error {
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s: %s\n", r.Drill, r.Proves)
	for _, a := range r.Arms {
		fmt.Fprintf(&out, "  %-9s %s (%.1f s)\n", a.Arm, a.Does, a.Seconds)
	}
	for _, s := range r.Settings {
		fmt.Fprintf(&out, "  %-25s %s\n", s.Name+"="+s.Value, s.Means)
	}
	fmt.Fprintf(&out, "  run %s, seed %d, %s\n\n", r.Run, r.Seed, r.Began.UTC().Format(time.RFC3339))
	r.writeFigures(&out)
	for _, a := range r.Arms {
		for _, t := range a.Tables {
			fmt.Fprintf(&out, "%s, %s\n", a.Arm, t.Title)
			align(&out, append([][]string{t.Columns}, t.Rows...))
		}
	}
	r.writeChecks(&out)
	r.writeVerdict(&out)
	_, err := w.Write(out.Bytes())
	return err
}

func (r *Report) writeFigures(out *bytes.Buffer) {
	rows := [][]string{{"FIGURE"}}
	at := map[string]int{}
	for i, a := range r.Arms {
		rows[0] = append(rows[0], strings.ToUpper(a.Arm))
		for _, f := range a.Figures {
			if at[f.Name] == 0 {
				at[f.Name] = len(rows)
				rows = append(rows, append([]string{f.Name}, make([]string, len(r.Arms))...))
			}
			rows[at[f.Name]][i+1] = f.Text
		}
	}
	if len(rows) > 1 {
		align(out, rows)
	}
}

func (r *Report) writeChecks(out *bytes.Buffer) {
	rows := [][]string{{"CHECK", "FIGURE", "EXPECTED", "OBSERVED", "RESULT"}}
	for _, c := range r.Checks {
		rows = append(rows, []string{c.Arm, c.Figure, c.Expected, c.Observed, map[bool]string{true: "ok", false: "FAILED"}[c.Holds]})
	}
	if len(rows) > 1 {
		align(out, rows)
	}
}

func (r *Report) writeVerdict(out *bytes.Buffer) {
	held := 0
	for _, c := range r.Checks {
		if c.Holds {
			held++
		}
	}
	fmt.Fprintf(out, "%s: %s, %d of %d checks hold, in %.1f s", strings.ToUpper(string(r.Verdict)), r.Drill, held, len(r.Checks), r.Seconds)
	if r.Reason != "" {
		fmt.Fprintf(out, "\n  %s", r.Reason)
	}
	out.WriteByte('\n')
}

// align writes rows as a table and an empty line.
func align(w io.Writer, rows [][]string) {
	table := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			if cells[i] = cell; cell == "" {
				cells[i] = "-"
			}
		}
		fmt.Fprintln(table, strings.Join(cells, "\t"))
	}
	_ = table.Flush() // into memory
	fmt.Fprintln(w)
}

// reportTime is the form of the time in a report's name.
const reportTime = "20060102T150405.000Z"

// write puts the report into files of its own, as text and as JSON: dir/<drill>/<UTC time>-<run>. Files that are there are
// never written to.
func (r *Report) write(dir string) error {
	if dir == "" {
		return nil
	}
	place := filepath.Join(dir, r.Drill)
	if err := os.MkdirAll(place, 0o755); err != nil {
		return fmt.Errorf("make the directory of reports: %w", err)
	}
	name, err := reserve(filepath.Join(place, r.Began.UTC().Format(reportTime)+"-"+r.Run))
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	r.Files = []string{name + ".txt", name + ".json"}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetIndent("", "  ")
	if err := errors.Join(r.Text(&text), os.WriteFile(name+".txt", text.Bytes(), 0o644)); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	text.Reset()
	if err := errors.Join(encoder.Encode(r), os.WriteFile(name+".json", text.Bytes(), 0o644)); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// reserve makes both files of a name that neither has, with a number behind it where somebody else was first.
func reserve(base string) (string, error) {
	for n := 1; ; n++ {
		name := base
		if n > 1 {
			name = fmt.Sprintf("%s-%d", base, n)
		}
		err := create(name + ".txt")
		if err == nil {
			err = create(name + ".json")
		}
		if !errors.Is(err, fs.ErrExist) {
			return name, err
		}
	}
}

func create(path string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return file.Close()
}
