use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

/// One message as it came from the broker. Cloning is cheap: bodies and values are reference-counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The broker's or the producer's id; the same on each redelivery of this message.
    pub id: MessageId,
    /// Kafka's record key, SQS's message group, the `key` of a JSON line. `None` and empty differ.
    pub record_key: Option<Bytes>,
    /// Headers that the producer set, in order, repeats kept.
    pub headers: Headers,
    /// What the protocol carries beside the headers (AMQP basic properties, SQS system attributes).
    pub properties: Headers,
    /// SQS message attributes and what else is neither header nor property.
    pub attributes: Headers,
    /// The payload. `None` (no payload, a tombstone) and empty differ.
    pub body: Option<Bytes>,
    /// Where it came from.
    pub origin: Origin,
    /// Set when the adapter could not make a sound message of what it read; such a message is rejected, never run.
    pub fault: Option<Fault>,
}

impl Message {
    /// A message with a body and nothing else; tests and publishers fill in the rest.
    pub fn new(id: impl Into<MessageId>, body: impl Into<Bytes>) -> Self {
        Self {
            id: id.into(),
            record_key: None,
            headers: Headers::default(),
            properties: Headers::default(),
            attributes: Headers::default(),
            body: Some(body.into()),
            origin: Origin::default(),
            fault: None,
        }
    }

    /// Adds a header after the ones that are there.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        self.headers.push(name, Some(value.into()));
        self
    }

    /// Sets the record key.
    #[must_use]
    pub fn with_record_key(mut self, key: impl Into<Bytes>) -> Self {
        self.record_key = Some(key.into());
        self
    }
}

/// What made a message unsound before any flow saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It could not be decoded; the text says what and where.
    Undecodable(String),
    /// It is larger than the adapter's limit. Sizes in bytes.
    Oversize {
        /// How large it is.
        size: u64,
        /// The limit that it passes.
        limit: u64,
    },
}

/// A message's id, printable.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(Arc<str>);

impl MessageId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<T: Into<Arc<str>>> From<T> for MessageId {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Where a message came from, in words that lead a person back to it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The broker's name in the configuration, or its kind.
    pub broker: Arc<str>,
    /// Queue, topic or path.
    pub source: Arc<str>,
    /// Partition and offset, sequence number, or byte offset; `None` where the broker has no such thing.
    pub position: Option<Arc<str>>,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.broker, self.source)?;
        match &self.position {
            Some(position) => write!(f, "@{position}"),
            None => Ok(()),
        }
    }
}

/// One header: a name and a value, both bytes. A null value (`None`) and an empty one differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The name as it was sent, not normalised.
    pub name: Bytes,
    /// The value, `None` for null.
    pub value: Option<Bytes>,
}

/// Headers in the order in which they were sent; names may repeat and need not be UTF-8.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<Header>);

impl Headers {
    /// Adds a header after the ones that are there, also when the name is taken.
    pub fn push(&mut self, name: impl Into<Bytes>, value: Option<Bytes>) {
        self.0.push(Header { name: name.into(), value });
    }

    /// Every value under that name, in order. Names compare without regard to ASCII case.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = Option<&'a Bytes>> {
        self.0.iter().filter(move |h| h.name.eq_ignore_ascii_case(name.as_bytes())).map(|h| h.value.as_ref())
    }

    /// All headers, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Header> {
        self.0.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<Header> for Headers {
    fn from_iter<I: IntoIterator<Item = Header>>(headers: I) -> Self {
        Self(headers.into_iter().collect())
    }
}
